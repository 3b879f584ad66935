"""Reading checkpoints without a model, a device, jax or Orbax.

A checkpoint is the directory `<checkpoints>/<step>/`, which gets that name when it is whole:

    run/metadata.json   what the run stored beside its state, and a table of the state's leaves
    sizes.json          bytes of every file
    state/              the leaves: zarr arrays, named by their dotted paths, in one OCDBT store

Leaves are read chunk by chunk, so that a checkpoint far larger than memory can be looked at.
`checkpoint.py` writes checkpoints and restores them onto devices.
"""

import dataclasses
import enum
import itertools
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorstore as ts

from jaxtrain.files import read_json, write_json

FORMAT = 1
RUN, RECORD, STATE = "run", "metadata.json", "state"
SIZES = "sizes.json"  # bytes of every file, written when all are
DELETING = ".deleting"  # suffix of a step that is on its way out

_NAME = re.compile(rf"(0|[1-9]\d*)(\.orbax-checkpoint-tmp.*|{re.escape(DELETING)})?")
_MANIFEST = "manifest.ocdbt"


class Condition(enum.Enum):
    """What can be done with a step that was found."""

    WHOLE = "whole"  # restored
    LEFTOVER = "leftover"  # of a save or a deletion under way or cut off: never the only copy
    DAMAGED = "damaged"  # whole once, now parts are missing or garbled
    UNREADABLE = "unreadable"  # another format, or access failed: may well be whole


@dataclasses.dataclass(frozen=True)
class Entry:
    """A step found in a directory of checkpoints; `problem` is None where it is whole."""

    step: int
    path: pathlib.Path
    condition: Condition
    problem: str | None

    def num_bytes(self) -> int:
        """Size on disk."""
        return sum(
            _size(pathlib.Path(root, name)) for root, _, f in os.walk(self.path) for name in f
        )


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a saved state; `sharding` says how it lay when it was saved."""

    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    sharding: str
    key_impl: str | None = None  # of typed PRNG keys, which are stored as their uint32 data

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Record:
    """What lies beside the arrays of a checkpoint."""

    metadata: Mapping[str, Any]  # as given to `Checkpoints.save`
    leaves: Mapping[str, Leaf]  # by dotted path


def find_entries(directory: pathlib.Path) -> list[Entry]:
    """All steps in a directory, whole or not, in order of their step.

    Raises:
      OSError: where the directory is there but cannot be listed.
    """
    try:
        paths = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for path in paths:
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found.append(Entry(int(match[1]), path, *_examine(path, match[2])))
    return sorted(found, key=lambda entry: (entry.step, entry.path.name))


def whole_steps(directory: pathlib.Path) -> list[int]:
    """The steps that can be restored, in order."""
    entries = find_entries(directory)
    return [entry.step for entry in entries if entry.condition is Condition.WHOLE]


def read_record(directory: pathlib.Path, step: int) -> Record:
    """Metadata and table of leaves of one step.

    Raises:
      ValueError: where that step is not there or not whole, listing those that are.
    """
    entries = find_entries(directory)
    whole = [entry.step for entry in entries if entry.condition is Condition.WHOLE]
    if step not in whole:
        problems = [entry.problem for entry in entries if entry.step == step]
        state = f"is not whole ({problems[0]})" if problems else "does not exist"
        steps = f"whole ones are {', '.join(map(str, whole))}" if whole else "none there is whole"
        raise ValueError(f"checkpoint of step {step} in {directory} {state}; {steps}.")
    return _parse(directory / str(step))


def open_leaf(directory: pathlib.Path, step: int, path: str) -> ts.TensorStore:
    """The stored array of a leaf; nothing of it is read yet.

    Raises:
      ValueError: where the stored array cannot be opened.
    """
    kvstore = {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{directory.absolute() / str(step) / STATE}/"},
        "path": f"{path}/",
    }
    try:
        return ts.open({"driver": "zarr", "kvstore": kvstore}, read=True, open=True).result()
    except ValueError as error:
        raise _damaged(directory, step, path, error) from error


def read_chunks(
    directory: pathlib.Path, path: str, *steps: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """The parts of a leaf, one stored chunk at a time, each as (part in the first step, …).

    Raises:
      ValueError: where a stored array is damaged.
    """
    arrays = [open_leaf(directory, step, path) for step in steps]
    for domain in _chunk_domains(arrays[0]):
        parts = []
        for step, array in zip(steps, arrays, strict=True):
            try:
                parts.append(array[domain].read().result())
            except ValueError as error:
                raise _damaged(directory, step, path, error) from error
        yield tuple(parts)


class _OtherFormatError(ValueError):
    pass


def _examine(path: pathlib.Path, suffix: str | None) -> tuple[Condition, str | None]:
    if suffix == DELETING:
        return Condition.LEFTOVER, "being deleted"
    if suffix:
        return Condition.LEFTOVER, "the save is under way or was cut off"
    part = f"{STATE}/{_MANIFEST}"
    try:
        (path / part).stat()
        part = f"{RUN}/{RECORD}"
        _parse(path)
        part = SIZES
        for part, num_bytes in _sizes(path).items():
            if (path / part).stat().st_size != num_bytes:
                return Condition.DAMAGED, f"{part} has not the {num_bytes} bytes that were saved"
    except (FileNotFoundError, NotADirectoryError):
        return Condition.DAMAGED, f"{part} is missing"
    except (OSError, _OtherFormatError) as error:
        return Condition.UNREADABLE, f"{part} cannot be read: {error!r}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Condition.DAMAGED, f"{part} cannot be read: {error!r}"
    return Condition.WHOLE, None


def write_sizes(path: pathlib.Path) -> None:
    """Records the size of every file of a step, so that a lost or shortened one is noticed."""
    names = (file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    write_json(path / SIZES, {name: (path / name).stat().st_size for name in sorted(names)})


def _sizes(path: pathlib.Path) -> dict[str, int]:
    """Empty for a step that was saved whole but whose run was killed just then."""
    return read_json(path / SIZES) if (path / SIZES).exists() else {}


def _parse(path: pathlib.Path) -> Record:
    record = read_json(path / RUN / RECORD)
    if record["format"] != FORMAT:
        raise _OtherFormatError(
            f"{path} has format {record['format']}, this version reads {FORMAT}; update jaxtrain."
        )
    leaves = {
        name: Leaf(**{**leaf, "shape": tuple(leaf["shape"])})
        for name, leaf in record["leaves"].items()
    }
    return Record(record["metadata"], leaves)


def _chunk_domains(array: ts.TensorStore) -> Iterator[tuple[slice, ...]]:
    chunk = [size or 1 for size in array.chunk_layout.read_chunk.shape or ()]
    starts = (range(0, size, part) for size, part in zip(array.shape, chunk, strict=True))
    for corner in itertools.product(*starts):
        yield tuple(
            slice(start, min(start + part, size))
            for start, part, size in zip(corner, chunk, array.shape, strict=True)
        )


def _damaged(directory: pathlib.Path, step: int, path: str, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(
        f"{path} of step {step} in {directory} cannot be read; that checkpoint is damaged: {reason}"
    )


def _size(path: pathlib.Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the run that is looked at has just deleted it
        return 0
