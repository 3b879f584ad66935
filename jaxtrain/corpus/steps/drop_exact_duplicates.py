"""Drops a document whose text another one has too, character for character.

Of documents with equal texts one is kept, chosen by a hash of id and source. Texts are compared by
a 128-bit hash (BLAKE2b).
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates import shuffle
from jaxtrain.corpus.duplicates.identity import ORDER, order_keys, pack, places
from jaxtrain.corpus.duplicates.verdicts import (
    Removals,
    cluster_sizes,
    read_verdicts,
    write_verdicts,
)
from jaxtrain.corpus.step import Executor, Outcome, Workspace, load_observed

_RULE = "exact duplicate"
_SORTED_BY = (*ORDER[1:], "place")  # equal texts together, the one to keep first
_RECORD = np.dtype([(name, "i8" if name == "place" else "u8") for name in _SORTED_BY])


@dataclasses.dataclass(frozen=True)
class Config:
    """Nothing to set: equal is equal."""


class DropExactDuplicates:
    """Keeps one document of each text."""

    needs: Sequence[str] = ()
    writes: Mapping[str, type] = {}
    rules: Sequence[str] = (_RULE,)

    def observe(self, chunk: Sequence[Document]) -> Mapping[str, np.ndarray]:
        """The hashes that decide, and the ids that removed documents will name."""
        ids, id_ends = pack(document.id for document in chunk)
        return {"order": order_keys(chunk), "ids": ids, "id_ends": id_ends}

    def decide(
        self, observed: Sequence[pathlib.Path], executor: Executor, scratch: pathlib.Path
    ) -> Mapping[str, Any]:
        """Brings equal hashes together by a shuffle."""
        spill = scratch / "shuffle"
        documents = sum(len(load_observed(path)["id_ends"]) for path in observed)
        number = shuffle.num_partitions(documents * _RECORD.itemsize)
        tasks = [
            shuffle.ScatterTask(path, i, number, spill / f"{i:05d}")
            for i, path in enumerate(observed)
        ]
        folders = list(executor.map(_scatter, tasks))
        parts = list(executor.map(_find, [_Find(folders, part) for part in range(number)]))
        found = np.concatenate(parts)
        removals = Removals(found[:, 0], found[:, 1], np.ones(len(found)))
        write_verdicts(scratch, removals, observed)
        shutil.rmtree(spill, ignore_errors=True)
        return {
            "documents": documents,
            "duplicates": len(found),
            "cluster_sizes": cluster_sizes(removals),
        }

    def apply(
        self, index: int, chunk: Sequence[Document], scratch: pathlib.Path
    ) -> Sequence[Outcome]:
        """Drops the documents of the chunk that are not the one kept."""
        duplicates = read_verdicts(scratch, index)
        return [
            Outcome(document, _RULE, f"same text as {duplicates[row].of}")
            if row in duplicates
            else Outcome(document)
            for row, document in enumerate(chunk)
        ]


def _scatter(task: shuffle.ScatterTask) -> pathlib.Path:
    order = load_observed(task.observed)["order"]
    records = np.empty(len(order), _RECORD)
    for column, name in enumerate(ORDER):
        if name in _SORTED_BY:
            records[name] = order[:, column]
    records["place"] = places(task.chunk, np.arange(len(order)))
    partitions = shuffle.partition_of(records["text_high"], task.partitions)
    return shuffle.scatter(task.folder, records, partitions, task.partitions)


class _Find(NamedTuple):
    folders: Sequence[pathlib.Path]
    partition: int


def _find(task: _Find) -> np.ndarray:
    """(place, place of the kept one) of the duplicates in a partition."""
    records = shuffle.gather(task.folders, task.partition, _RECORD)
    records = shuffle.repeated(records, _SORTED_BY[0], _SORTED_BY[1:])
    ends = shuffle.run_ends([records["text_high"], records["text_low"]])
    sizes = np.diff(ends, prepend=0)
    first = np.repeat(ends - sizes, sizes)
    extra = first != np.arange(len(records))
    return np.stack([records["place"][extra], records["place"][first[extra]]], axis=1)


def make(config: Config, workspace: Workspace) -> DropExactDuplicates:
    """The step."""
    return DropExactDuplicates()
