"""Documents on disk between steps and at the end: Parquet, whole or absent.

A chunk holds consecutive documents of a unit; it is the atom of work, of resuming and of memory.
Columns are `id`, `text`, `source`, `origin` (where the reader found it, "file:offset"), one of each
field that a step writes, in its type, and `metadata`, a JSON object with whatever else is known.
The same documents give the same bytes.
"""

import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jaxtrain import files
from jaxtrain.corpus.documents import Document

ORIGIN = "origin"
METADATA = "metadata"
RESERVED = ("id", "text", "source", ORIGIN, METADATA)
_TYPES: Mapping[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
}
_ROW_GROUP_BYTES = 8_000_000  # of text: what a reader holds at a time
_COMPRESSION_LEVEL = 3  # of zstd; text shrinks to a third at some 200 MB/s


class ChunkWriter:
    """Writes documents into one Parquet file, a row group at a time.

    Args:
      fields: columns beside the standard ones, with their types.
    """

    def __init__(self, file: Any, fields: Mapping[str, type]) -> None:
        self._fields = fields
        columns = [pa.field(name, pa.string()) for name in ("id", "text", "source", ORIGIN)]
        columns += [pa.field(name, _TYPES[kind]) for name, kind in fields.items()]
        self._schema = pa.schema([*columns, pa.field(METADATA, pa.string())])
        self._writer = pq.ParquetWriter(
            file, self._schema, compression="zstd", compression_level=_COMPRESSION_LEVEL
        )
        self._rows: list[Document] = []
        self._num_bytes = 0

    def add(self, document: Document) -> None:
        """Appends a document."""
        self._rows.append(document)
        self._num_bytes += len(document.text)
        if self._num_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Writes what is left and the end of the file."""
        if self._rows:
            self._flush()
        self._writer.close()

    def __enter__(self) -> "ChunkWriter":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._writer.is_open = False  # after an error: what it would still write is not wanted

    def _flush(self) -> None:
        rows = self._rows
        typed = [name for name in self._fields]
        apart = {ORIGIN, *typed}
        columns: list[Any] = [
            [row.id for row in rows],
            [row.text for row in rows],
            [row.source for row in rows],
            [row.metadata.get(ORIGIN, "") for row in rows],
        ]
        columns += [[row.metadata.get(name) for row in rows] for name in typed]
        columns.append([_rest(row.metadata, apart) for row in rows])
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows, self._num_bytes = [], 0


def write_chunk(
    path: str | os.PathLike[str], documents: Iterable[Document], fields: Mapping[str, type]
) -> None:
    """Writes a Parquet file of documents, whole or not at all."""
    with files.write_whole(path) as file, ChunkWriter(file, fields) as writer:
        for document in documents:
            writer.add(document)


def read_chunk(path: str | os.PathLike[str]) -> Iterator[Document]:
    """The documents of a Parquet file that `write_chunk` wrote, in order, a row group at a time."""
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if missing := [name for name in RESERVED if name not in names]:
            raise ValueError(f"{path} is no file of a corpus: it has no column {missing[0]}")
        fields = [name for name in names if name not in RESERVED]
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            columns = {name: table.column(name).to_pylist() for name in names}
            yield from _documents(columns, fields)


def _documents(columns: Mapping[str, list], fields: Sequence[str]) -> Iterator[Document]:
    standard = zip(*(columns[name] for name in RESERVED), strict=True)
    for row, (identity, text, source, origin, metadata) in enumerate(standard):
        known = json.loads(metadata)
        known[ORIGIN] = origin
        known.update((name, columns[name][row]) for name in fields)
        yield Document(identity, text, source, known)


def _rest(metadata: Mapping[str, Any], apart: set[str]) -> str:
    rest = {key: value for key, value in metadata.items() if key not in apart}
    return json.dumps(rest, ensure_ascii=False, sort_keys=True) if rest else "{}"


def merge_chunks(paths: Sequence[pathlib.Path], target: pathlib.Path) -> None:
    """Writes the documents of several chunks, in order, as one file with the columns of the first.

    Row groups are filled anew, so that many small chunks make no file of many small groups.
    """
    with files.write_whole(target) as out:
        with pq.ParquetFile(paths[0]) as first:
            schema = first.schema_arrow
        fields = {
            field.name: kind
            for field in schema
            if field.name not in RESERVED
            for kind, arrow in _TYPES.items()
            if arrow == field.type
        }
        with ChunkWriter(out, fields) as writer:
            for path in paths:
                for document in read_chunk(path):
                    writer.add(document)
