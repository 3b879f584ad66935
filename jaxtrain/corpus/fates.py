"""What became of every document: one small Parquet file a chunk, exact, without any text.

A row holds the document's id, a hash of its text as read, and either the step and rule that
removed it or the output that it was written to, with a hash of its text there where that has
changed. This is what two runs are compared by.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jaxtrain import files
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome

_HASH_BYTES = 16
_LABEL = pa.dictionary(pa.int32(), pa.string())
_LABELS = ["step", "rule", "output"]
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text_hash", pa.binary(_HASH_BYTES)),  # as read
        ("step", _LABEL),  # that removed it; null: kept
        ("rule", _LABEL),
        ("output", _LABEL),  # null: removed
        ("new_text_hash", pa.binary(_HASH_BYTES)),  # as written; null: unchanged, or removed
    ]
)


class Fate(NamedTuple):
    """What became of one document."""

    id: str
    text_hash: bytes
    step: str | None = None
    rule: str | None = None
    output: str | None = None
    new_text_hash: bytes | None = None


class Fates:
    """The fates of a chunk's documents, in the order in which they were read.

    Where the steps run in several passes, a pass goes on from the file that the one before saved.
    """

    def __init__(self, documents: Iterable[Document] = ()) -> None:
        self._fates = [Fate(each.id, text_hash(each.text)) for each in documents]
        self._alive = list(range(len(self._fates)))

    def record(self, step: str, outcomes: Sequence[Outcome]) -> None:
        """A step judged the documents that were left; outcomes in their order."""
        self._match([outcome.document for outcome in outcomes], step)
        alive = []
        for position, outcome in zip(self._alive, outcomes, strict=True):
            if outcome.dropped is None:
                alive.append(position)
            else:
                fate = self._fates[position]
                self._fates[position] = fate._replace(step=step, rule=outcome.dropped)
        self._alive = alive

    def write(self, outputs: Sequence[str], documents: Sequence[Document]) -> None:
        """The documents that were left were written, each to the output named at its place."""
        self._match(documents, "output")
        for position, output, document in zip(self._alive, outputs, documents, strict=True):
            fate, new = self._fates[position], text_hash(document.text)
            changed = None if new == fate.text_hash else new
            self._fates[position] = fate._replace(output=output, new_text_hash=changed)
        self._alive = []

    def _match(self, documents: Sequence[Document], where: str) -> None:
        left = [self._fates[position].id for position in self._alive]
        came = [document.id for document in documents]
        assert left == came, f"{where}: {len(left)} documents were left, others came: {len(came)}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all; the same fates give the same bytes."""
        columns: list[Any] = list(zip(*self._fates, strict=True)) or [()] * len(SCHEMA)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)
        ]
        with files.write_whole(path) as file:
            pq.write_table(
                pa.Table.from_arrays(arrays, schema=SCHEMA),
                file,
                compression="zstd",
                use_dictionary=_LABELS,  # pyright: ignore[reportArgumentType]  (stubs)
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Fates":
        """The fates that `save` wrote, to be gone on with."""
        fates = cls()
        fates._fates = list(read_fates(path))
        fates._alive = [
            position
            for position, fate in enumerate(fates._fates)
            if fate.step is None and fate.output is None
        ]
        return fates


def read_fates(path: str | os.PathLike[str]) -> Iterable[Fate]:
    """The rows of a chunk's file, in order."""
    table = pq.read_table(pathlib.Path(path), schema=SCHEMA, use_threads=False)
    return map(Fate, *(column.to_pylist() for column in table.columns))


def text_hash(text: str) -> bytes:
    """The first half of the SHA-256 of a text's UTF-8."""
    return hashlib.sha256(text.encode()).digest()[:_HASH_BYTES]
