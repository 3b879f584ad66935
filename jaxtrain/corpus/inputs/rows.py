"""From rows of an Arrow table to documents."""

import json
from typing import Any

import pyarrow as pa

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs.reading import Fault, Items, Malformed, Part, ReadingConfig
from jaxtrain.corpus.inputs.records import TOO_LONG, plain, refuse_surrogates, to_document

_MAX_SLICE_ROWS = 1024
_SLICE_BYTES = 8_000_000  # of rows that are turned into Python values at once, about
# A file that `prepare` wrote has these columns; `metadata` is a JSON string there.
_CORPUS_COLUMNS = {"id", "text", "source", "origin", "metadata"}


def documents(batch: pa.RecordBatch, row: int, part: Part, reading: ReadingConfig) -> Items:
    """The documents of a batch whose first row is number `row` of its file."""
    is_corpus = set(batch.schema.names) >= _CORPUS_COLUMNS
    step = rows_at_once(batch.num_rows, batch.nbytes)
    for start in range(0, batch.num_rows, step):
        for number, record in enumerate(_records(batch.slice(start, step)), row + start):
            yield _item(record, number, is_corpus, part, reading)


def rows_at_once(num_rows: int, num_bytes: int) -> int:
    """How many of `num_rows` rows of `num_bytes` together are held at a time."""
    return min(max(_SLICE_BYTES * num_rows // max(num_bytes, 1), 1), _MAX_SLICE_ROWS)


def _records(rows: pa.RecordBatch) -> list[Any]:
    """Each row as a record, or as the Fault that keeps it from being one."""
    try:
        return rows.to_pylist()
    except UnicodeDecodeError:  # find out which row
        return [_record(rows, row) for row in range(rows.num_rows)]


def _record(rows: pa.RecordBatch, row: int) -> Any:
    try:
        return rows.slice(row, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return Fault("bad UTF-8", f"not UTF-8 at byte {error.start}")


def _item(record: Any, row: int, is_corpus: bool, part: Part, reading: ReadingConfig) -> Any:
    size = 0
    try:
        if isinstance(record, Fault):
            raise record
        record = {key: plain(value) for key, value in record.items()}
        text = record.get(reading.text_field)
        size = len(text.encode()) if isinstance(text, str) else 0
        if size > reading.max_document_bytes:
            raise Fault(
                TOO_LONG,
                f"{size:,} bytes, more than max_document_bytes={reading.max_document_bytes:,}",
            )
        origin = _unfold(record) if is_corpus else None
        item = to_document(record, part, row, size, reading)
    except Fault as fault:
        return Malformed(part.name, row, fault.reason, size, str(fault))
    if origin is not None and isinstance(item, Document):  # the raw file's, further back
        return item._replace(metadata={**item.metadata, "origin": origin})
    return item


def _unfold(record: dict[str, Any]) -> str | None:
    """Spreads the metadata of a row that `prepare` wrote; returns the row's own origin."""
    metadata, origin = record.pop("metadata"), record.pop("origin")
    if metadata:
        try:
            more = json.loads(metadata)
        except ValueError as error:
            raise Fault("bad JSON", f"`metadata` is not JSON ({error})") from error
        refuse_surrogates(more)
        record.update(more)
    return origin
