r"""`Document` and its file form: JSON Lines, one document a line.

A line holds `id`, `text`, `source` and whatever else is known of the document. Lines end at `\n`
and nowhere else: U+2028, U+0085 and their like are characters of a text. A line that cannot be read
is an error that names the file and the line, never a silent gap.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxtrain import files


class Document(NamedTuple):
    """One text and where it comes from.

    An id of the form `whole#part` marks a part of the document `whole`. Ids depend neither on where
    a corpus lies nor on the order in which it is read.
    """

    id: str
    text: str
    source: str
    metadata: Mapping[str, Any]  # JSON values under keys other than id, text and source

    @property
    def whole_id(self) -> str:
        """The id of the document that this one is a part of; its own where it is whole."""
        return self.id.partition("#")[0]

    @property
    def num_bytes(self) -> int:
        """Length of the text in UTF-8."""
        return len(self.text) if self.text.isascii() else len(self.text.encode())


class Written(NamedTuple):
    """What a documents file holds."""

    documents: int
    bytes: int  # of text in UTF-8, not of the file
    sha256: str  # of the file


def read_documents(path: str | os.PathLike[str]) -> Iterator[Document]:
    """Yields the documents of a JSON Lines file in order; blank lines are passed by.

    Only `text` is required. A missing id is made of the file's name and the line, a missing source
    is the file's name without its endings.

    Raises:
      ValueError: names the file, the line and what is wrong with it.
    """
    for _, document in read_documents_at(path):
        yield document


def read_documents_at(path: str | os.PathLike[str]) -> Iterator[tuple[int, Document]]:
    """Like `read_documents`, each with the byte of the file at which its line begins."""
    name = pathlib.Path(path).name
    start = 0
    with open(path, "rb") as lines:  # a binary file breaks lines at \n only
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield start, _parse(line, f"{name}:{number}", name.split(".")[0])
                except ValueError as error:
                    raise ValueError(
                        f"{path}:{number}: {error}; mend or remove the line"
                    ) from error
            start += len(line)


def write_documents(path: str | os.PathLike[str], documents: Iterable[Document]) -> Written:
    """Writes a JSON Lines file, whole or not at all; the same documents give the same bytes."""
    count = num_bytes = 0
    digest = hashlib.sha256()
    with files.write_whole(path) as file:
        for document in documents:
            line = _line(document)
            file.write(line)
            digest.update(line)
            count += 1
            num_bytes += document.num_bytes
    return Written(count, num_bytes, digest.hexdigest())


def fingerprint(documents: Iterable[Document]) -> str:
    """A hash, in hex, of everything that the documents say, in their order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(_line(document))
    return digest.hexdigest()


def _line(document: Document) -> bytes:
    record = {"id": document.id, "text": document.text, "source": document.source}
    return json.dumps(record | dict(document.metadata), ensure_ascii=False).encode() + b"\n"


def _parse(line: bytes, default_id: str, default_source: str) -> Document:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply to be a document") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos})") from error
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__}, but must be a JSON object")
    if "text" not in record:
        raise ValueError(f"has no `text` among its keys {sorted(record)}")
    text = record.pop("text")
    identity = record.pop("id", default_id)
    source = record.pop("source", default_source)
    if type(identity) is int:
        identity = str(identity)
    for key, value in (("text", text), ("id", identity), ("source", source)):
        if not isinstance(value, str):
            raise ValueError(f"`{key}` is {value!r}, but must be a string")
        _refuse_surrogates(key, value)
    return Document(identity, text, source, record)


def _refuse_surrogates(key: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`{key}` has the lone surrogate U+{ord(value[error.start]):04X} at character "
            f"{error.start}, which is no text"
        ) from error
