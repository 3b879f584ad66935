"""Which documents share a key, found without comparing each with each: a shuffle by key.

    observed chunks ─ scatter ─▶ records by key ─ group ─▶ groups of two or more

A key counts together with its column: a band, or a choice of blocks.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtrain.corpus.duplicates import shuffle
from jaxtrain.corpus.duplicates.clusters import Groups
from jaxtrain.corpus.duplicates.identity import places
from jaxtrain.corpus.mixing import mix
from jaxtrain.corpus.step import Executor, load_observed

_RECORD = np.dtype([("key", "u8"), ("place", "i8"), ("column", "u2")])
_APART = 0x9E3779B97F4A7C15  # keeps equal keys of two columns apart


class Partition(NamedTuple):
    """The groups of one partition: where they are, and what there is to count."""

    file: pathlib.Path
    pairs: np.ndarray  # of each column, int64
    largest: int  # members of a group

    def load(self) -> Groups:
        """The groups."""
        arrays = np.load(self.file)
        return Groups(arrays["members"], arrays["ends"])


def find_groups(
    observed: Sequence[pathlib.Path],
    num_documents: int,
    num_keys: int,
    executor: Executor,
    folder: pathlib.Path,
) -> list[Partition]:
    """Groups of documents that share a key, spilled to `folder`."""
    number = shuffle.num_partitions(num_documents * num_keys * _RECORD.itemsize)
    tasks = [
        shuffle.ScatterTask(path, chunk, number, folder / f"keys-{chunk:05d}")
        for chunk, path in enumerate(observed)
    ]
    folders = list(executor.map(_scatter, tasks))
    group_tasks = [
        _Group(folders, partition, num_keys, folder / f"groups-{partition:05d}.npz")
        for partition in range(number)
    ]
    return list(executor.map(_group, group_tasks))


def _scatter(task: shuffle.ScatterTask) -> pathlib.Path:
    """The keys of a chunk; documents without shingles have none."""
    arrays = load_observed(task.observed)
    rows = np.flatnonzero(arrays["num_shingles"])
    keys = arrays["keys"][rows]
    columns = np.arange(keys.shape[1], dtype=np.uint64)
    records = np.empty(keys.size, _RECORD)
    records["key"] = mix(keys + columns * np.uint64(_APART)).ravel()
    records["place"] = np.repeat(places(task.chunk, rows), len(columns))
    records["column"] = np.tile(columns, len(rows))
    partitions = shuffle.partition_of(records["key"], task.partitions)
    return shuffle.scatter(task.folder, records, partitions, task.partitions)


class _Group(NamedTuple):
    folders: Sequence[pathlib.Path]
    partition: int
    num_keys: int
    file: pathlib.Path


def _group(task: _Group) -> Partition:
    """Groups equal keys."""
    records = shuffle.gather(task.folders, task.partition, _RECORD)
    records = records[np.argsort(records["key"], kind="stable")]
    ends = shuffle.run_ends([records["key"]])
    sizes = np.diff(ends, prepend=0)
    shared = np.repeat(sizes > 1, sizes)
    columns, sizes = records["column"][ends - 1][sizes > 1], sizes[sizes > 1]
    np.savez(task.file, members=records["place"][shared], ends=np.cumsum(sizes))
    pairs = np.zeros(task.num_keys, np.int64)
    np.add.at(pairs, columns, sizes * (sizes - 1) // 2)
    return Partition(task.file, pairs, int(sizes.max(initial=0)))
