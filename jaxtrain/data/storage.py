"""Headerless files of numbers below a directory or a URL: their sizes, hashes and pieces of them.

One layout serves both engines: a local file is mapped into memory and a remote one is read by byte
ranges through tensorstore's key-value drivers. A row of 512 tokens costs 0.5 to 1.5 µs mapped and 6
to 9 µs by range (warm files, CPU time; docs/data.md has the table), hence the mapping.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorstore as ts

from jaxtrain.data.metadata import REMEDY, FileInfo, StoreError

#: One per process, so that connections are shared and a memory:// store is the same everywhere.
_CONTEXT = ts.Context()

#: Read and hashed at a time; 64 MB cost twice as much, as their memory is fresh each time.
_HASHED_BYTES = 1 << 22

#: Mapped files kept open at once; each holds a file descriptor, of which 1,024 is a usual limit.
_MAX_MAPPED = 256


def local_path(path: str) -> str | None:
    """The directory behind a path or file:// address; None for object storage."""
    if path.startswith("file://"):
        return path.removeprefix("file://")
    return None if "://" in path else os.path.abspath(path)


def open_directory(path: str) -> ts.KvStore:
    """The files below a local path or a URL, as tensorstore's key-value store."""
    local = local_path(path)
    spec = path.rstrip("/") + "/" if local is None else {"driver": "file", "path": local + "/"}
    try:
        return ts.KvStore.open(spec, context=_CONTEXT).result()
    except ValueError as error:
        raise StoreError(f"{path}: {reason(error)}; use a path or a URL") from None


def reason(error: Exception) -> str:
    """Why tensorstore failed, in one line without its error codes."""
    return re.sub(r" \[\w+=.*", "", str(error).splitlines()[0])


class StoredFiles:
    """Files below a path or URL, by name."""

    def __init__(self, path: str):
        self._path = path
        self._directory = open_directory(path)
        self._local = local_path(path)
        self._mapped: dict[str, np.ndarray] = {}

    def whole(self, name: str) -> bytes | None:
        """A file's content, None where it is missing."""
        return self._result(self._directory.read(name), name)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a file that has them."""
        read = self._directory.read(name, byte_range=slice(start, stop))
        return self._exactly(read, name, stop - start)

    def check_sizes(self, files: Mapping[str, FileInfo], stated_in: str) -> None:
        """Raises StoreError where a file is missing or has another size; one small read each."""
        reads = []
        for name, info in files.items():
            last = slice(max(info.num_bytes - 1, 0), None)
            reads.append((name, info.num_bytes, self._directory.read(name, byte_range=last)))
        for name, num_bytes, read in reads:
            found = self._result(read, name)
            if found is None:
                raise StoreError(f"{self._path}/{name}: the file is missing; {REMEDY}")
            if len(found) != min(num_bytes, 1):
                how = "shorter" if len(found) < 1 else "longer"
                raise StoreError(
                    f"{self._path}/{name}: {how} than the {num_bytes:,} bytes of {stated_in}; "
                    f"{REMEDY}"
                )

    def check_content(self, files: Mapping[str, FileInfo], stated_in: str) -> None:
        """Reads every byte and compares the hashes; raises StoreError at the first difference."""
        for name, info in files.items():
            digest = hashlib.sha256()
            for start in range(0, info.num_bytes, _HASHED_BYTES):
                digest.update(self.read(name, start, min(start + _HASHED_BYTES, info.num_bytes)))
            if digest.hexdigest() != info.sha256:
                raise StoreError(
                    f"{self._path}/{name}: its content has changed "
                    f"(SHA-256 differs from {stated_in}); {REMEDY}"
                )

    def gather(
        self, pieces: Iterable[tuple[str, int, int, int]], dtype: np.dtype, out: np.ndarray
    ) -> None:
        """Copies pieces (file, start, length, offset) to `out[offset : offset + length]`.

        Start and length count entries of the files: numbers of this type, or rows of as many of
        them as a row of `out` has.
        """
        if self._local is not None:
            for name, start, length, offset in pieces:
                array = self._map(name, dtype, out.shape[1:])
                out[offset : offset + length] = array[start : start + length]
            return
        size = dtype.itemsize * math.prod(out.shape[1:])
        batch = ts.Batch()  # lets the driver join neighbouring ranges into one request
        reads = []
        for name, start, length, offset in pieces:
            span = slice(start * size, (start + length) * size)
            read = self._directory.read(name, byte_range=span, batch=batch)
            reads.append((name, read, length, offset))
        batch.submit()
        for name, read, length, offset in reads:
            content = self._exactly(read, name, length * size)
            entries = np.frombuffer(content, dtype).reshape(length, *out.shape[1:])
            out[offset : offset + length] = entries

    def _map(self, name: str, dtype: np.dtype, row_shape: tuple[int, ...]) -> np.ndarray:
        array = self._mapped.get(name)
        if array is None:
            if len(self._mapped) >= _MAX_MAPPED:
                self._mapped.pop(next(iter(self._mapped)), None)
            # A plain array: slicing numpy.memmap, a subclass, costs several times as much.
            array = np.asarray(np.memmap(os.path.join(str(self._local), name), dtype, mode="r"))
            array = array.reshape(-1, *row_shape)
            self._mapped[name] = array
        return array

    def _exactly(self, read: Any, name: str, num_bytes: int) -> bytes:
        found = self._result(read, name)
        if found is None or len(found) != num_bytes:
            raise StoreError(f"{self._path}/{name}: changed after it was opened; {REMEDY}")
        return found

    def _result(self, future: Any, name: str) -> bytes | None:
        """The bytes that a read brings, None where the file is missing."""
        try:
            result = future.result()
        except ValueError as error:
            if "OUT_OF_RANGE" in str(error):
                return b""
            raise StoreError(f"{self._path}/{name}: cannot be read: {reason(error)}") from None
        return None if result.state == "missing" else result.value
