"""The documents that a run removed, with the reason: all of them, or a sample of each rule's.

A sample holds those whose text has the smallest hash, so that it depends neither on the order of
documents nor on how they are cut into chunks. Its texts are cut to a length, those of `all` not.
"""

import itertools
import os
import pathlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jaxtrain import files
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.examples import smallest, text_sha256
from jaxtrain.corpus.step import Outcome

ALL, SAMPLE, NONE = "all", "sample", "none"
CHOICES = (ALL, SAMPLE, NONE)
SAMPLE_PER_RULE = 100
SAMPLE_CHARACTERS = 10_000
_ROW_GROUP_BYTES = 8_000_000  # of text
_ROW_GROUPS_PER_FILE = 32
_LABELS = ["source", "step", "rule"]


class Removed(NamedTuple):
    """A document that was removed, as it came to the step."""

    sha256: str  # of the whole text
    id: str
    text: str
    source: str
    origin: str
    step: str
    rule: str
    because: str


_SCHEMA = pa.schema([(name, pa.string()) for name in Removed._fields])


class Rejected:
    """What is kept of the documents that were removed from one chunk in one pass."""

    def __init__(self, keep: str) -> None:
        assert keep in CHOICES, keep
        self._keep = keep
        self._rows: list[Removed] = []

    def record(self, step: str, batch: Sequence[Document], outcomes: Sequence[Outcome]) -> None:
        """A step judged a batch."""
        if self._keep == NONE:
            return
        end = SAMPLE_CHARACTERS if self._keep == SAMPLE else None
        for document, outcome in zip(batch, outcomes, strict=True):
            if outcome.dropped is not None:
                row = Removed(
                    sha256=text_sha256(document.text),
                    id=document.id,
                    text=document.text[:end],
                    source=document.source,
                    origin=str(document.metadata.get("origin", "")),
                    step=step,
                    rule=outcome.dropped,
                    because=outcome.because,
                )
                self._rows.append(row)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what is to be kept, whole or not at all."""
        rows = _sample(self._rows) if self._keep == SAMPLE else self._rows
        with files.write_whole(path) as file:
            _write(file, _row_groups(rows))


def merge_rejected(
    parts: Iterable[str | os.PathLike[str]], directory: str | os.PathLike[str], keep: str
) -> None:
    """Writes 00000.parquet, … into `directory` from the files that the chunks saved, in order."""
    rows = (row for part in parts for row in read_rejected(part))
    groups = _row_groups(_sample(rows) if keep == SAMPLE else rows)
    for index in itertools.count():
        first = next(groups, None)
        if first is None:
            break
        with files.write_whole(pathlib.Path(directory, f"{index:05d}.parquet")) as file:
            rest = itertools.islice(groups, _ROW_GROUPS_PER_FILE - 1)
            _write(file, itertools.chain([first], rest))


def read_rejected(path: str | os.PathLike[str]) -> Iterator[Removed]:
    """The rows of one file, in order, a row group at a time."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            yield from map(Removed, *(column.to_pylist() for column in table.columns))


def _sample(rows: Iterable[Removed]) -> list[Removed]:
    """For each step and rule the rows of the smallest hashes, one for each text."""
    by_rule: dict[tuple[str, str], list[Removed]] = defaultdict(list)
    for row in rows:
        found = by_rule[row.step, row.rule]
        found.append(row)
        if len(found) >= 4 * SAMPLE_PER_RULE:
            found[:] = smallest(found, SAMPLE_PER_RULE)
    return [row for _, found in sorted(by_rule.items()) for row in smallest(found, SAMPLE_PER_RULE)]


def _row_groups(rows: Iterable[Removed]) -> Iterator[list[Removed]]:
    group: list[Removed] = []
    num_bytes = 0
    for row in rows:
        group.append(row)
        num_bytes += len(row.text.encode())
        if num_bytes >= _ROW_GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _write(file: IO[bytes], groups: Iterable[Sequence[Removed]]) -> None:
    with pq.ParquetWriter(
        file,
        _SCHEMA,
        compression="zstd",
        use_dictionary=_LABELS,  # pyright: ignore[reportArgumentType]  (stubs)
    ) as writer:
        for group in groups:
            columns = [pa.array(column, pa.string()) for column in zip(*group, strict=True)]
            writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
