"""Records from every chunk to the partition of their key, through files.

Each map task leaves a folder with its records ordered by partition; the task of a partition reads
its stretch of all folders, so that memory holds one partition. Their number decides how much that
is and nothing else.
"""

import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

PARTITION_BYTES = 64_000_000  # aimed at; sorting takes about three times as much


class ScatterTask(NamedTuple):
    """A chunk whose records go to the partitions of their keys."""

    observed: pathlib.Path
    chunk: int
    partitions: int  # how many there are
    folder: pathlib.Path  # for the records


def num_partitions(total_bytes: int) -> int:
    """How many partitions hold `total_bytes` of records."""
    return -(-total_bytes // PARTITION_BYTES) or 1


def partition_of(keys: np.ndarray, number: int) -> np.ndarray:
    """A partition below `number` for evenly distributed 64-bit keys."""
    return ((keys >> np.uint64(32)) * np.uint64(number) >> np.uint64(32)).astype(np.int64)


def scatter(
    folder: pathlib.Path, records: np.ndarray, partitions: np.ndarray, number: int
) -> pathlib.Path:
    """Writes records, each for a partition below `number`, into a new folder; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    order = np.argsort(partitions, kind="stable")
    np.save(folder / "records.npy", records[order])
    np.save(folder / "bounds.npy", np.searchsorted(partitions[order], np.arange(number + 1)))
    return folder


def gather(folders: Iterable[pathlib.Path], partition: int, record: np.dtype) -> np.ndarray:
    """All records (of type `record`) for a partition, in the order of folders."""
    stretches = [np.empty(0, record)]
    for folder in folders:
        start, end = np.load(folder / "bounds.npy", mmap_mode="r")[partition : partition + 2]
        stretches.append(np.array(np.load(folder / "records.npy", mmap_mode="r")[start:end]))
    return np.concatenate(stretches)


def run_ends(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Where each run of equal records ends, of records sorted by `columns`."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    changes = np.zeros(len(columns[0]) - 1, bool)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return np.append(np.flatnonzero(changes) + 1, len(columns[0]))


def repeated(records: np.ndarray, first: str, others: Sequence[str]) -> np.ndarray:
    """The records whose field `first` is not the only one of its value, sorted by all fields named.

    Most values of a corpus occur once: they are sorted out by one field alone, which is quick.
    """
    records = records[np.argsort(records[first], kind="stable")]
    ends = run_ends([records[first]])
    sizes = np.diff(ends, prepend=0)
    records = records[np.repeat(sizes > 1, sizes)]
    return records[np.lexsort([records[name] for name in (*reversed(others), first)])]
