r"""`Document` and its file form: JSON Lines, one document a line.

A line holds `id`, `text`, `source` and whatever else is known of the document. Lines end at `\n`
and nowhere else: U+2028, U+0085 and their like are characters of a text. `inputs/` reads this form
and others.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxtrain import files

PART_OF = "part_of"  #: metadata of a document that stands in another one too: the other's id


class Document(NamedTuple):
    """One text and where it comes from.

    Ids depend neither on where a corpus lies nor on the order in which it is read.
    """

    id: str
    text: str
    source: str
    metadata: Mapping[str, Any]  # JSON values under keys other than id, text and source; PART_OF

    @property
    def whole_id(self) -> str:
        """The id of the document that this one is a part of; its own where it is whole."""
        return self.metadata.get(PART_OF, self.id)

    @property
    def num_bytes(self) -> int:
        """Length of the text in UTF-8."""
        return len(self.text) if self.text.isascii() else len(self.text.encode())


class Written(NamedTuple):
    """What a documents file holds."""

    documents: int
    bytes: int  # of text in UTF-8, not of the file
    sha256: str  # of the file


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
