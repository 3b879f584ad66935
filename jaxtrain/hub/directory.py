"""A Hugging Face directory: its config and its tensors, wherever they are stored.

    model.safetensors.index.json + the files it names, or model.safetensors, or pickled weights
    (pytorch_model.bin), which are refused unless asked for

Everything that is wrong is collected into one error before any weight is read.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jaxtrain.files import read_json
from jaxtrain.hub.fields import raise_problems
from jaxtrain.hub.pickled import PickledFile
from jaxtrain.hub.safetensors import Entry, SafetensorsFile

CONFIG = "config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


class TensorFile(Protocol):
    """What a file of weights offers."""

    @property
    def path(self) -> pathlib.Path:
        """Where it is."""
        ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Dtype and shape by name."""
        ...

    def read(self, name: str) -> np.ndarray:
        """A tensor."""
        ...


class Tensors:
    """All tensors of a directory by name."""

    def __init__(self, files: Sequence[TensorFile], directory: pathlib.Path) -> None:
        """Raises:
        ValueError: where two files have a tensor of one name.
        """
        self._files: dict[str, TensorFile] = {}
        problems = []
        for file in files:
            for name in file.entries:
                if name in self._files:
                    first = self._files[name].path.name
                    problems.append(f"{name} is in {first} and again in {file.path.name}")
                self._files[name] = file
        raise_problems(problems, f"{directory}")

    @property
    def entries(self) -> dict[str, Entry]:
        """Dtype and shape by name."""
        return {name: file.entries[name] for name, file in self._files.items()}

    def read(self, name: str) -> np.ndarray:
        """A tensor; a read-only view into its file where that can be mapped."""
        return self._files[name].read(name)


def is_model(directory: pathlib.Path) -> bool:
    """Whether a directory looks like a model's: it has a config.json that says of what type."""
    path = directory / CONFIG
    if not path.is_file():
        return False
    content = read_json(path)
    return isinstance(content, dict) and "model_type" in content


def read_config(directory: pathlib.Path) -> dict[str, Any]:
    """The config.json of a directory.

    Raises:
      ValueError: where it is not there or no JSON object.
    """
    path = directory / CONFIG
    if not path.is_file():
        raise ValueError(
            f"{directory} has no {CONFIG}; give the directory of a Hugging Face model."
        )
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, but must hold an object.")
    return content


def open_tensors(directory: pathlib.Path, *, allow_pickle: bool = False) -> Tensors:
    """Finds the weights of a directory and reads where each tensor lies.

    Raises:
      ValueError: where there are none, files are damaged or missing, or only pickled weights are
        there and `allow_pickle` is False.
    """
    if (directory / INDEX).is_file():
        return _open_sharded(directory, INDEX, SafetensorsFile)
    if (directory / SINGLE).is_file():
        return Tensors([SafetensorsFile(directory / SINGLE)], directory)
    pickled = [name for name in (PICKLED_INDEX, PICKLED) if (directory / name).is_file()]
    if not pickled:
        raise ValueError(f"{directory} has no weights: neither {SINGLE} nor {INDEX}.")
    if not allow_pickle:
        raise ValueError(
            f"{directory} has only pickled weights ({pickled[0]}), and a pickle can run any code; "
            "take the safetensors of this model, or give --allow_pickle if you trust its source."
        )
    if pickled[0] == PICKLED:
        return Tensors([PickledFile(directory / PICKLED)], directory)
    return _open_sharded(directory, PICKLED_INDEX, PickledFile)


def _open_sharded(directory: pathlib.Path, index_name: str, open_file: Any) -> Tensors:
    path = directory / index_name
    index = read_json(path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{path} has no weight_map; it must say which file has which tensor.")
    names = sorted({str(name) for name in weight_map.values()})
    # A file beside the index, by its bare name: no way out of the directory.
    outside = [name for name in names if name != pathlib.PurePath(name).name or name in ("", "..")]
    problems = [f"it names {name!r}, which is not a file beside it" for name in outside]
    inside = [name for name in names if name not in outside]
    absent = [name for name in inside if not (directory / name).is_file()]
    problems += [f"it names {name}, which is absent" for name in absent]
    files = {}
    for name in inside:
        if name in absent:
            continue
        try:
            files[name] = open_file(directory / name)
        except ValueError as error:
            problems.append(str(error))
    problems += [
        f"it says that {tensor} is in {name}, which has no such tensor"
        for tensor, name in weight_map.items()
        if name in files and tensor not in files[name].entries
    ]
    raise_problems(problems, str(path))
    return Tensors(list(files.values()), directory)
