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
        known = [(each.id, text_hash(each.text)) for each in documents]
        nothing: list[Any] = [None] * len(known)
        columns: list[list[Any]] = [[name for name, _ in known], [value for _, value in known]]
        self._columns = dict(
            zip(SCHEMA.names, [*columns, *([*nothing] for _ in range(4))], strict=True)
        )
        self._alive = list(range(len(known)))

    def record(self, step: str, outcomes: Sequence[Outcome]) -> None:
        """A step judged the documents that were left; outcomes in their order."""
        self._match([outcome.document for outcome in outcomes], step)
        alive = []
        for position, outcome in zip(self._alive, outcomes, strict=True):
            if outcome.dropped is None:
                alive.append(position)
            else:
                self._columns["step"][position] = step
                self._columns["rule"][position] = outcome.dropped
        self._alive = alive

    def write(self, outputs: Sequence[str], documents: Sequence[Document]) -> None:
        """The documents that were left were written, each to the output named at its place."""
        self._match(documents, "output")
        as_read = self._columns["text_hash"]
        for position, output, document in zip(self._alive, outputs, documents, strict=True):
            self._columns["output"][position] = output
            new = text_hash(document.text)
            if new != as_read[position]:
                self._columns["new_text_hash"][position] = new
        self._alive = []

    def _match(self, documents: Sequence[Document], where: str) -> None:
        ids = self._columns["id"]
        left = [ids[position] for position in self._alive]
        came = [document.id for document in documents]
        assert left == came, f"{where}: {len(left)} documents were left, others came: {len(came)}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all; the same fates give the same bytes."""
        arrays = [_array(self._columns[field.name], field.type) for field in SCHEMA]
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
        table = _read(path)
        fates._columns = {name: table[name].to_pylist() for name in SCHEMA.names}
        ends = zip(fates._columns["step"], fates._columns["output"], strict=True)
        fates._alive = [
            position
            for position, (step, output) in enumerate(ends)
            if step is None and output is None
        ]
        return fates


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):  # through strings: ten times as fast as directly
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind)


def _read(path: str | os.PathLike[str]) -> pa.Table:
    return pq.read_table(pathlib.Path(path), schema=SCHEMA, use_threads=False)


def read_fates(path: str | os.PathLike[str]) -> Iterable[Fate]:
    """The rows of a chunk's file, in order."""
    return map(Fate, *(column.to_pylist() for column in _read(path).columns))


def text_hash(text: str) -> bytes:
    """The first half of the SHA-256 of a text's UTF-8."""
    return hashlib.sha256(text.encode()).digest()[:_HASH_BYTES]
