"""Files here and in object storage: what is there, and what is in them, decompressed on the way.

A path that is no URL needs no more than Python; a URL goes through fsspec, which finds the client
for its scheme (s3fs for s3://, gcsfs for gs://, …).
"""

import fnmatch
import glob
import hashlib
import os
import pathlib
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import IO, Any

_BLOCK_BYTES = 1 << 20
_ZSTD_STEP_BYTES = 2048
COMPRESSED = (".gz", ".zst")


class Damaged(ValueError):
    """A file that ends or breaks off in the middle of what its format promises."""


def is_url(path: str) -> bool:
    """Whether `path` is not of this machine's file system."""
    return "://" in path


def normal(path: str) -> str:
    """The path as listings spell it: a URL by its file system's habit, file:// as a plain path."""
    path = path.removeprefix("file://")
    if is_url(path):
        system, inside = _remote(path)
        return system.unstrip_protocol(inside)
    return path.rstrip("/") or "/"


def open_binary(file: str) -> IO[bytes]:
    """The file, for reading at any place."""
    if is_url(file):
        system, path = _remote(file)
        return system.open(path, "rb")
    return open(file, "rb")


def size(file: str) -> int:
    """Bytes of the file as it is stored."""
    if is_url(file):
        system, path = _remote(file)
        return int(system.size(path))
    return os.path.getsize(file)


def is_directory(path: str) -> bool:
    """Whether `path` is a folder."""
    if is_url(path):
        system, inside = _remote(path)
        return system.isdir(inside)
    return os.path.isdir(path)


def exists(path: str) -> bool:
    """Whether anything is at `path`."""
    if is_url(path):
        system, inside = _remote(path)
        return system.exists(inside)
    return os.path.exists(path)


def matching(pattern: str) -> list[str]:
    """Files that a glob (`**` for any folders) matches, in the order of their names."""
    if exists(pattern):
        return [pattern]  # a name may hold brackets
    if is_url(pattern):
        system, inside = _remote(pattern)
        found = [path for path in system.glob(inside) if not system.isdir(path)]
        return sorted(map(system.unstrip_protocol, found))
    return sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))


def below(directory: str, exclude: tuple[str, ...] = ()) -> list[str]:
    """Files anywhere below a folder, in the order of their names, without excluded names."""

    def is_read(name: str) -> bool:
        return not any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude)

    if is_url(directory):
        system, top = _remote(directory)
        found = {path: path.removeprefix(top).strip("/").split("/") for path in system.find(top)}
        kept = [path for path, names in found.items() if all(map(is_read, names))]
        return sorted(map(system.unstrip_protocol, kept))
    found = []
    for folder, subfolders, names in os.walk(directory, onerror=_raise):
        subfolders[:] = filter(is_read, subfolders)
        found += [pathlib.Path(folder, name).as_posix() for name in names if is_read(name)]
    return sorted(filter(os.path.isfile, found))  # a broken link is no file


def sha256(file: str) -> str:
    """The SHA-256 of a file as it is stored, in hex."""
    digest = hashlib.sha256()
    with open_binary(file) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def blocks(file: str, start: int = 0) -> Iterator[bytes]:
    """The content from byte `start` on, a megabyte or so at a time; .gz and .zst unpacked.

    Raises:
      Damaged: after all that could be read, where a compressed file is cut short or corrupt.
    """
    with open_binary(file) as stream:
        if file.endswith(COMPRESSED):
            yield from _unpacked(stream, file)
            return
        if start:
            stream.seek(start)
        while block := stream.read(_BLOCK_BYTES):
            yield block


def _unpacked(stream: IO[bytes], file: str) -> Iterator[bytes]:
    """What a chain of gzip members or zstd frames holds."""
    begin, unpack, failure = _decompressor(file)
    member = None
    while block := stream.read(_BLOCK_BYTES):
        while block:
            if member is None:
                if not block.strip(b"\0"):  # padding behind the last member
                    break
                member = begin()
            try:
                block = yield from unpack(member, block)
            except failure as error:
                raise Damaged(f"is corrupt ({error})") from error
            if member.eof:
                member = None
    if member is not None:
        raise Damaged("is cut short: its last part is missing")


def _decompressor(file: str) -> tuple[Callable, Callable, type[Exception]]:
    """What begins a member, what unpacks a block of it, and what that raises."""
    if file.endswith(".gz"):
        return (lambda: zlib.decompressobj(wbits=31)), _inflate, zlib.error
    try:
        import zstandard  # where needed: not every corpus is compressed so
    except ImportError as error:
        raise ValueError(f"{file} needs `pip install zstandard`") from error
    return zstandard.ZstdDecompressor().decompressobj, _unpack_zstd, zstandard.ZstdError


def _inflate(member: Any, block: bytes) -> Generator[bytes, None, bytes]:
    """The content of a block in bounded pieces; returns what is behind the end of the member."""
    while True:
        out = member.decompress(block, _BLOCK_BYTES)
        if out:
            yield out
        block = member.unconsumed_tail
        if member.eof or not (block or len(out) == _BLOCK_BYTES):
            return member.unused_data


def _unpack_zstd(member: Any, block: bytes) -> Generator[bytes, None, bytes]:
    """The same, bounded by small steps: the library has no limit, four bytes may be 128 KiB."""
    for start in range(0, len(block), _ZSTD_STEP_BYTES):
        stop = start + _ZSTD_STEP_BYTES
        if out := member.decompress(block[start:stop]):
            yield out
        if member.eof:
            return member.unused_data + block[stop:]
    return b""


def _remote(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    try:
        import fsspec  # where needed: it is slow to start and local files do without

        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # names the package that the scheme needs
        raise ValueError(f"{url} cannot be opened: {error}") from error


def _raise(error: OSError) -> None:
    raise error
