"""The safetensors format: reading by memory mapping, writing tensor by tensor.

A file is 8 bytes (little-endian length of the header), a JSON header that gives each tensor's
dtype, shape and range of bytes, and the bytes. Nothing of a file is believed before it is checked:
the length against the file, every range against its shape and the others.
"""

import json
import math
import mmap
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jaxtrain.files import write_whole

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_ALIGNMENT = 8  # of the data, by spaces at the end of the header
_METADATA = "__metadata__"

#: The names of floating-point formats in files. Others are known only by size.
FLOATS: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
_BYTES |= {"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
_BYTES |= {name: dtype.itemsize for name, dtype in FLOATS.items()}


class Entry(NamedTuple):
    """Where a tensor lies; `dtype` as the file names it."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # in the file
    num_bytes: int


class SafetensorsFile:
    """The tensors of a file; their bytes are read when they are looked at."""

    def __init__(self, path: pathlib.Path) -> None:
        """Reads the header.

        Raises:
          ValueError: names the file and what is wrong with it.
        """
        self.path = path
        try:
            self.entries = _read_header(path)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
        self._map: mmap.mmap | None = None

    def read(self, name: str) -> np.ndarray:
        """A tensor of a format of FLOATS as a read-only view into the file."""
        if self._map is None:
            with open(self.path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        entry = self.entries[name]
        flat = np.frombuffer(
            self._map, FLOATS[entry.dtype], math.prod(entry.shape), offset=entry.start
        )
        return flat.reshape(entry.shape)


def _read_header(path: pathlib.Path) -> dict[str, Entry]:
    num_file_bytes = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if num_file_bytes < 8 or length > min(_MAX_HEADER_BYTES, num_file_bytes - 8):
            raise ValueError(
                f"its header would have {length:,} bytes, but the file has {num_file_bytes:,} "
                f"(and {_MAX_HEADER_BYTES:,} are the most)"
            )
        header = json.loads(file.read(length), object_pairs_hook=_unique)
    header.pop(_METADATA, None)
    entries = {name: _entry(name, value, 8 + length) for name, value in header.items()}
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if not entry.num_bytes:
            continue
        if entry.start != end:
            raise ValueError(f"{name} begins at byte {entry.start}, not {end} where the last ends")
        end += entry.num_bytes
    if end != num_file_bytes:
        raise ValueError(f"its tensors end at byte {end:,}, the file at {num_file_bytes:,}")
    return entries


def _entry(name: str, value: Mapping[str, Any], data_start: int) -> Entry:
    dtype, shape, (start, stop) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    if dtype not in _BYTES:
        raise ValueError(f"{name} has the unknown dtype {dtype}")
    if not all(isinstance(n, int) and n >= 0 for n in (*shape, start, stop)):
        raise ValueError(f"{name} has a shape or range that is negative or no integer")
    if stop - start != math.prod(shape) * _BYTES[dtype]:
        raise ValueError(f"{name} of shape {list(shape)} does not fill its {stop - start} bytes")
    return Entry(dtype, shape, data_start + start, stop - start)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a name stands twice in its header")
    return dict(pairs)


class Planned(NamedTuple):
    """A tensor that is going to be written."""

    name: str
    shape: tuple[int, ...]
    own_dtype: np.dtype | None = None  # None: that of all

    def dtype(self, of_all: np.dtype) -> np.dtype:
        """In a file whose other tensors are `of_all`."""
        return of_all if self.own_dtype is None else self.own_dtype

    def num_bytes(self, of_all: np.dtype) -> int:
        """In such a file."""
        return math.prod(self.shape) * self.dtype(of_all).itemsize


def write(
    path: pathlib.Path, plan: Sequence[Planned], dtype: np.dtype, tensors: Iterable[np.ndarray]
) -> None:
    """Writes the planned tensors, which come one by one, in order; the file is whole or absent."""
    names = {known: name for name, known in FLOATS.items()}
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    start = 0
    for each in plan:
        stop = start + each.num_bytes(dtype)
        header[each.name] = {
            "dtype": names[each.dtype(dtype)],
            "shape": list(each.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with write_whole(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for planned, tensor in zip(plan, tensors, strict=True):
            assert tensor.shape == planned.shape, (planned, tensor.shape)
            assert tensor.dtype == planned.dtype(dtype), (planned, tensor.dtype)
            file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
