"""Files that are whole or absent, and fingerprints of what is in them.

A name exists only when its content is complete: everything is written beside it and renamed. A
fingerprint is a hash of content, never of a path or a time, so that a result is recognised where
it was moved to and is not taken for what it was before an edit.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import uuid
from collections.abc import Iterator
from typing import IO, Any


@contextlib.contextmanager
def write_whole(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file that appears as `path` when the block ends, or not at all when it raises.

    The content reaches the disk before the name does: a power cut leaves no empty file either.
    """
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as readable JSON; the same value gives the same bytes."""
    with write_whole(path) as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a JSON file.

    Raises:
      ValueError: where the file holds no JSON, naming it.
    """
    try:
        return json.loads(pathlib.Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); restore it or delete it") from error


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file's content, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
