"""Rows of files, each a record of any keys: JSON Lines, one JSON array, Parquet, a saved data set.

Files are found and opened as for a corpus (`corpus/inputs`); what a row must hold is said by
`forms.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jaxtrain.corpus.inputs import Part, ReadingConfig, json_array, json_lines, plan, storage
from jaxtrain.corpus.inputs.reading import Fault
from jaxtrain.corpus.inputs.records import plain, refuse_surrogates

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHOLE_FILES = 1 << 62  # bytes of a unit


class Row(NamedTuple):
    """A record and where it stands."""

    place: str  # file:offset in bytes, or in rows where the format has rows
    record: Mapping[str, Any] | None  # None: it is malformed
    fault: str = ""


class RowFiles:
    """The rows of all files that some inputs name, in order."""

    def __init__(self, given: Sequence[str]) -> None:
        """Args: given: `[name=]` path, glob or URL, each.

        Raises:
          ValueError: for an input that matches no file, or one that holds no rows.
        """
        self._reading = ReadingConfig()
        units = plan(given, self._reading, unit_bytes=_WHOLE_FILES)
        self._parts = [part for unit in units for part in unit.parts]
        for part in self._parts:
            if part.format not in _READERS:
                raise ValueError(
                    f"--input: {part.file} is {part.format}; rows are read from "
                    f"{', '.join(_READERS)}"
                )
        self.num_bytes = sum(storage.size(part.file) for part in self._parts)

    def sha256(self) -> list[str]:
        """The hash of each file's content, in order."""
        return [storage.sha256(part.file) for part in self._parts]

    def __iter__(self) -> Iterator[Row]:
        for part in self._parts:
            try:
                for offset, record in _READERS[part.format](part, self._reading):
                    is_fault = isinstance(record, Fault)
                    place = f"{part.source} {part.name}:{offset}"
                    yield Row(place, None, str(record)) if is_fault else Row(place, record)
            except (storage.Damaged, pa.ArrowException) as error:
                reason = " ".join(str(error).split())
                raise ValueError(f"{part.file} is damaged: {reason}; restore it") from error


_Found = Iterator[tuple[int, Any]]  # offset, and a record or the Fault that keeps it from being one


def _json_lines(part: Part, reading: ReadingConfig) -> _Found:
    for line in json_lines.lines(storage.blocks(part.file), reading.max_document_bytes):
        content = line.content
        if content is None:
            yield line.offset, Fault("too long", f"a line of {line.num_bytes:,} bytes")
            continue
        content = content if line.offset else content.removeprefix(_BYTE_ORDER_MARK)
        if content.strip():
            yield line.offset, _or_fault(lambda content=content: json_lines.parse(content))


def _json_array(part: Part, reading: ReadingConfig) -> _Found:
    number = -1
    try:
        found = json_array.elements(storage.blocks(part.file), reading.max_document_bytes)
        for number, (element, _) in enumerate(found):
            yield number, _or_fault(lambda element=element: _checked(element))
    except Fault as fault:  # what follows cannot be told apart
        raise ValueError(f"{part.file}, element {number + 1}: {fault}; mend it") from fault


def _parquet(part: Part, reading: ReadingConfig) -> _Found:
    del reading
    with storage.open_binary(part.file) as stream:
        yield from _table(pq.ParquetFile(stream).iter_batches(1024))


def _dataset(part: Part, reading: ReadingConfig) -> _Found:
    del reading
    with storage.open_binary(part.file) as file, pa.ipc.open_stream(file) as stream:
        yield from _table(iter(stream))


def _table(batches: Iterator[pa.RecordBatch]) -> _Found:
    row = 0
    for batch in batches:
        for number, record in enumerate(batch.to_pylist(), row):
            yield number, _or_fault(lambda record=record: _checked(plain(record)))
        row += batch.num_rows


_READERS: Mapping[str, Callable[[Part, ReadingConfig], _Found]] = {
    "json_lines": _json_lines,
    "json_array": _json_array,
    "parquet": _parquet,
    "dataset": _dataset,
}


def _checked(record: Any) -> Any:
    if not isinstance(record, dict):
        raise Fault("bad JSON", f"a {type(record).__name__}, but must be an object")
    refuse_surrogates(record)
    return record


def _or_fault(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Fault as fault:
        return fault
