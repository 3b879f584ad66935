"""A Hugging Face model as a whole: its family, its config as ours, and its checked weights."""

import fnmatch
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxtrain.hub import families
from jaxtrain.hub.directory import CONFIG, Tensors, open_tensors, read_config
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import raise_problems
from jaxtrain.hub.safetensors import FLOATS
from jaxtrain.hub.weights import Leaf, Weight
from jaxtrain.models.config import ModelConfig


class HubModel:
    """A model's directory, opened: everything about it is known, no weight is read."""

    def __init__(self, directory: pathlib.Path, *, allow_pickle: bool = False) -> None:
        """Raises:
        ValueError: naming whatever is missing, damaged or not supported.
        """
        if not directory.is_dir():
            raise ValueError(f"{directory} is not a directory; give that of a Hugging Face model.")
        self.directory = directory
        self.hf: Mapping[str, Any] = read_config(directory)
        path = str(directory / CONFIG)
        self.family: Family = families.family_of(self.hf, path)
        self.config: ModelConfig = self.family.read(self.hf, path)
        self.tensors: Tensors = open_tensors(directory, allow_pickle=allow_pickle)

    @property
    def weights(self) -> list[Weight]:
        """The family's table for this model."""
        return list(self.family.weights(self.config))

    @property
    def dtype(self) -> np.dtype:
        """The format of most parameters."""
        counts: dict[str, int] = {}
        for entry in self.tensors.entries.values():
            counts[entry.dtype] = counts.get(entry.dtype, 0) + math.prod(entry.shape)
        return FLOATS[max(counts, key=lambda name: counts[name])]

    @property
    def recipe(self) -> str:
        """The precision recipe that it computes in unless told otherwise."""
        return "float32" if self.dtype.name == "float32" else "bfloat16"

    def check(self, leaves: Mapping[str, Leaf]) -> None:
        """Compares the tensors with a model of ours.

        Args:
          leaves: of the model, by dotted path; see `logical_leaves`.

        Raises:
          ValueError: naming every tensor that is missing, not known, of another shape, not of
            floating point, or a tied head that is no copy.
        """
        entries, expected = self.tensors.entries, {}
        for weight in self.weights:
            shape = weight.shape(leaves)
            expected |= {name: shape for name, _ in weight.tensors(leaves)}
        self._check_table(leaves)
        problems = self._without_further_tokens()
        if not problems:
            problems = [f"{name} is missing" for name in expected if name not in entries]
        for name, entry in entries.items():
            if name not in expected:
                problems += self._unexpected(name)
            elif entry.shape != expected[name]:
                problems.append(
                    f"{name} has the shape {list(entry.shape)}, not {list(expected[name])}"
                )
            elif entry.dtype not in FLOATS:
                problems.append(f"{name} has the dtype {entry.dtype}, not {', '.join(FLOATS)}")
        raise_problems(problems, f"{self.directory} does not hold the model of its {CONFIG}")

    def _without_further_tokens(self) -> list[str]:
        """Where config.json counts modules of multi-token prediction that were not saved."""
        num, prefix = self.config.num_mtp_layers, f"model.layers.{self.config.num_layers}."
        if not num or any(name.startswith(prefix) for name in self.tensors.entries):
            return []
        return [
            f"num_nextn_predict_layers={num}, but there is no tensor {prefix}* (`transformers` "
            "does not save these modules); set it to 0 in config.json"
        ]

    def _check_table(self, leaves: Mapping[str, Leaf]) -> None:
        """A family's table and the model have the same parameters: an invariant, not user input."""
        paths = sorted(part.path for weight in self.weights for part in weight.parts)
        assert paths == sorted(leaves), sorted(set(paths) ^ set(leaves))

    def _unexpected(self, name: str) -> list[str]:
        if any(fnmatch.fnmatch(name, pattern) for pattern in self.family.ignored):
            return []
        copies = dict(self.family.copies(self.config))
        copies |= dict([self.family.tied_copy]) if self.config.tied_head else {}
        original = copies.get(name)
        if original not in self.tensors.entries:
            return [f"{name} is not known"]
        same = [self.tensors.entries[each][:2] for each in (name, original)]
        if same[0] == same[1] and same[0][0] in FLOATS:
            tied, own = (self.tensors.read(n).view(np.uint8) for n in (name, original))
            if np.array_equal(tied, own):
                return []
        return [f"{name} differs from {original}, but in this model they are one"]


def logical_leaves(
    letters: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], vocab_size: int
) -> dict[str, Leaf]:
    """The parameters of a model by dotted path, without the padding of the vocabulary.

    Args:
      letters, shapes: of every parameter, by dotted path.
    """
    return {
        path: Leaf(
            letters[path],
            tuple(
                vocab_size if letter == "V" else size
                for letter, size in zip(letters[path], shapes[path], strict=True)
            ),
        )
        for path in letters
    }
