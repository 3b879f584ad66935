"""The documents of two runs, paired: the same text first, then the same id; in bounded memory.

A document keeps its text when the input is renamed or cut otherwise, and keeps its id when its text
is edited. So rows are paired by text (among equal texts by id), and what is left over by id. Both
are done in partitions of the key, spilled to disk, so that one partition is held at a time.
"""

import contextlib
import os
import pathlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jaxtrain.corpus.fates import text_hash

_ROWS_PER_PARTITION = 100_000  # some 100 MB as Python objects
_MAX_PARTITIONS = 400  # files open at a time


class Row(NamedTuple):
    """A document of one run."""

    text_hash: bytes  # as read
    id: str
    fate: str  # the output that it was written to, or "step: rule"
    new_hash: bytes | None  # of its text as written; None: removed


Pair = tuple[Row | None, Row | None]
_SCHEMA = pa.schema(
    [
        ("text_hash", pa.binary(16)),
        ("id", pa.string()),
        ("fate", pa.string()),
        ("new_hash", pa.binary(16)),
    ]
)


def pair_documents(
    a: Iterable[str | os.PathLike[str]], b: Iterable[str | os.PathLike[str]]
) -> Iterator[Pair]:
    """Yields every document of either run once, with its like in the other or None.

    Args:
      a, b: the files of fates of the runs.
    """
    files = [pathlib.Path(path) for path in a], [pathlib.Path(path) for path in b]
    num_rows = sum(pq.read_metadata(path).num_rows for side in files for path in side)
    number = min(max(1, num_rows // _ROWS_PER_PARTITION), _MAX_PARTITIONS)
    with tempfile.TemporaryDirectory() as folder:
        spill = pathlib.Path(folder)
        for side, paths in zip("ab", files, strict=True):
            tables = (_table(path) for path in paths)
            _scatter(tables, number, _by_text, spill / f"text-{side}")
        with contextlib.ExitStack() as stack:
            left = [stack.enter_context(_Spill(spill / f"id-{side}", number)) for side in "ab"]
            for part in range(number):
                rows_a, rows_b = (_gather(spill / f"text-{side}", part) for side in "ab")
                pairs, *left_over = _pair(rows_a, rows_b, _text_of, _id_of)
                yield from pairs
                for rows, into in zip(left_over, left, strict=True):
                    into.add(_to_table(rows), _by_id)
        for part in range(number):
            rows_a, rows_b = (_gather(spill / f"id-{side}", part) for side in "ab")
            pairs, only_a, only_b = _pair(rows_a, rows_b, _id_of, _text_of)
            yield from pairs
            yield from ((row, None) for row in only_a)
            yield from ((None, row) for row in only_b)


def _text_of(row: Row) -> bytes | str:
    return row.text_hash


def _id_of(row: Row) -> bytes | str:
    return row.id


def _pair(
    a: list[Row],
    b: list[Row],
    key: Callable[[Row], bytes | str],
    finer: Callable[[Row], bytes | str],
) -> tuple[list[Pair], list[Row], list[Row]]:
    """(pairs of equal key, rows of a left over, rows of b), by `finer` among equal keys."""
    groups: dict[bytes | str, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((a, b)):
        for row in rows:
            groups[key(row)][side].append(row)
    pairs: list[Pair] = []
    left_over: tuple[list[Row], list[Row]] = [], []
    for value in sorted(groups):
        of_a, of_b = (sorted(rows, key=finer) for rows in groups[value])
        if len(of_a) != 1 or len(of_b) != 1:
            same, of_a, of_b = _pair_equal(of_a, of_b, finer)
            pairs += same
        together = min(len(of_a), len(of_b))
        pairs += zip(of_a[:together], of_b[:together], strict=True)
        left_over[0].extend(of_a[together:])
        left_over[1].extend(of_b[together:])
    return pairs, *left_over


def _pair_equal(
    a: list[Row], b: list[Row], key: Callable[[Row], bytes | str]
) -> tuple[list[Pair], list[Row], list[Row]]:
    """Pairs of equal key in two lists ordered by it, and what is left of either."""
    pairs: list[Pair] = []
    left_a: list[Row] = []
    left_b: list[Row] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if key(a[i]) == key(b[j]):
            pairs.append((a[i], b[j]))
            i, j = i + 1, j + 1
        elif key(a[i]) < key(b[j]):  # type: ignore[operator]
            left_a.append(a[i])
            i += 1
        else:
            left_b.append(b[j])
            j += 1
    return pairs, left_a + a[i:], left_b + b[j:]


def _table(path: pathlib.Path) -> pa.Table:
    """The rows of a file of fates."""
    fates = pq.read_table(path, use_threads=False)
    step, rule, output = (fates[name].cast(pa.string()) for name in ("step", "rule", "output"))
    removed = pc.call_function("binary_join_element_wise", [step, rule, ": "])
    fate = pc.call_function("coalesce", [output, removed])
    written = pc.call_function("coalesce", [fates["new_text_hash"], fates["text_hash"]])
    nothing = pa.nulls(len(fates), pa.binary(16))
    new_hash = pc.call_function("if_else", [output.is_valid(), written, nothing])
    columns = [fates["text_hash"], fates["id"], fate, new_hash]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _to_table(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def _by_text(table: pa.Table) -> np.ndarray:
    """A number of 16 bits for each row, the same for equal texts."""
    return _first_bytes(b"".join(table["text_hash"].to_pylist()))


def _by_id(table: pa.Table) -> np.ndarray:
    """A number of 16 bits for each row, the same for equal ids."""
    return _first_bytes(b"".join(map(text_hash, table["id"].to_pylist())))


def _first_bytes(hashes: bytes) -> np.ndarray:
    return np.frombuffer(hashes, ">u2")[::8].astype(np.int64)


class _Spill:
    """A file for each partition, open for writing."""

    def __init__(self, folder: pathlib.Path, number: int) -> None:
        folder.mkdir()
        self._writers = [
            pa.ipc.new_stream(folder / f"{part}.arrows", _SCHEMA) for part in range(number)
        ]

    def add(self, table: pa.Table, key: Callable[[pa.Table], np.ndarray]) -> None:
        """Spreads rows over the partitions."""
        if not len(table):
            return
        parts = key(table) % len(self._writers)
        order = np.argsort(parts, kind="stable")
        table = table.take(order)
        bounds = np.searchsorted(parts[order], np.arange(len(self._writers) + 1))
        for writer, begin, end in zip(self._writers, bounds[:-1], bounds[1:], strict=True):
            if end > begin:
                writer.write_table(table.slice(begin, end - begin))

    def __enter__(self) -> "_Spill":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()


def _scatter(
    tables: Iterable[pa.Table],
    number: int,
    key: Callable[[pa.Table], np.ndarray],
    folder: pathlib.Path,
) -> None:
    with _Spill(folder, number) as spill:
        for table in tables:
            spill.add(table, key)


def _gather(folder: pathlib.Path, part: int) -> list[Row]:
    path = folder / f"{part}.arrows"
    with pa.ipc.open_stream(path) as stream:
        table = stream.read_all()
    path.unlink()
    return list(map(Row, *(column.to_pylist() for column in table.columns)))
