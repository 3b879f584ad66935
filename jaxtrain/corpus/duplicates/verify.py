"""From candidates to verdicts: every removal rests on a comparison of two documents.

    groups ─ connected components ─▶ bundles ─ compare, in order, shingle sets on disk ─▶ removals

Components share no candidates, so that bundles of them are decided apart. The shingles of
candidates are cut again from their texts and mapped from disk: memory holds those that are being
compared.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtrain.corpus.duplicates import shuffle, simhash
from jaxtrain.corpus.duplicates.candidates import Partition
from jaxtrain.corpus.duplicates.clusters import Comparisons, Groups, bundles, choose, components
from jaxtrain.corpus.duplicates.identity import ORDER, chunk_of, row_of, unpack
from jaxtrain.corpus.duplicates.shingles import Shingler, jaccard
from jaxtrain.corpus.duplicates.verdicts import Removals
from jaxtrain.corpus.step import Executor, load_observed

_BUNDLE_DOCUMENTS = 20_000  # some seconds of work
_TEXTS_AT_A_TIME = 1_000
_MEMBERSHIP = np.dtype([("place", "i8"), ("group", "i8")])


class Measure(NamedTuple):
    """What makes two documents similar."""

    shingler: Shingler
    threshold: float  # least Jaccard similarity of the sets of shingles
    max_distance: int | None  # most bits in which fingerprints differ; None: not compared


def verify(
    partitions: Sequence[Partition],
    observed: Sequence[pathlib.Path],
    num_new: int,
    measure: Measure,
    executor: Executor,
    folder: pathlib.Path,
) -> tuple[Removals, Comparisons]:
    """Decides all candidates.

    Args:
      observed: chunks; those from `num_new` on are a reference, kept whatever they are like.
    """
    known, labels = components([partition.load for partition in partitions])
    spills = [
        _Spill(path, _rows_in(known, chunk), measure.shingler, folder / f"shingles-{chunk:05d}")
        for chunk, path in enumerate(observed)
    ]
    spilled = list(executor.map(_spill, spills))
    of_component = bundles(labels, _BUNDLE_DOCUMENTS)
    number = int(of_component[-1]) + 1 if len(of_component) else 0
    memberships = [
        _scatter(partition, known, of_component[labels], number, folder / f"members-{index:05d}")
        for index, partition in enumerate(partitions)
    ]
    tasks = [_Bundle(memberships, bundle, spilled, num_new, measure) for bundle in range(number)]
    return _added_up(list(executor.map(_decide, tasks)))


def _rows_in(known: np.ndarray, chunk: int) -> np.ndarray:
    start, end = np.searchsorted(chunk_of(known), [chunk, chunk + 1])
    return row_of(known[start:end])


def _scatter(
    partition: Partition,
    known: np.ndarray,
    bundle_of: np.ndarray,
    number: int,
    folder: pathlib.Path,
) -> pathlib.Path:
    """The memberships of a partition's groups, by bundle."""
    members, ends = partition.load()
    sizes = np.diff(ends, prepend=0)
    records = np.empty(len(members), _MEMBERSHIP)
    records["place"] = members
    records["group"] = np.repeat(np.arange(len(sizes)), sizes)
    return shuffle.scatter(folder, records, bundle_of[np.searchsorted(known, members)], number)


class _Spill(NamedTuple):
    observed: pathlib.Path
    rows: np.ndarray
    shingler: Shingler
    folder: pathlib.Path


def _spill(task: _Spill) -> pathlib.Path:
    """What comparing needs of a chunk's candidates."""
    task.folder.mkdir(parents=True, exist_ok=True)
    arrays = load_observed(task.observed)
    sizes = []
    if len(task.rows):
        packed, ends = arrays["text"], arrays["text_ends"]
    with open(task.folder / "shingles.bin", "wb") as file:
        for start in range(0, len(task.rows), _TEXTS_AT_A_TIME):
            texts = unpack(packed, ends, task.rows[start : start + _TEXTS_AT_A_TIME])
            for shingles in task.shingler.sets(texts):
                file.write(shingles.tobytes())
                sizes.append(len(shingles))
    np.save(task.folder / "rows.npy", task.rows)
    np.save(task.folder / "ends.npy", np.cumsum(sizes, dtype=np.int64))
    np.save(task.folder / "order.npy", arrays["order"][task.rows])
    np.save(task.folder / "fingerprints.npy", arrays["fingerprints"][task.rows])
    return task.folder


class _Candidates:
    """The documents of a bundle, by number."""

    def __init__(self, where: np.ndarray, spilled: Sequence[pathlib.Path]) -> None:
        self.order = np.empty((len(where), len(ORDER)), np.uint64)
        fingerprints = np.empty(len(where), np.uint64)
        self._sets: list[np.ndarray] = []
        chunks = chunk_of(where)
        for chunk in np.unique(chunks).tolist():
            folder, here = spilled[chunk], np.flatnonzero(chunks == chunk)
            at = np.searchsorted(np.load(folder / "rows.npy"), row_of(where[here]))
            self.order[here] = np.load(folder / "order.npy")[at]
            fingerprints[here] = np.load(folder / "fingerprints.npy")[at]
            ends = np.load(folder / "ends.npy")
            starts = np.concatenate([[0], ends])[at]
            mapped = np.asarray(np.memmap(folder / "shingles.bin", np.uint64, "r"))
            bounds = zip(starts.tolist(), ends[at].tolist(), strict=True)
            self._sets += [mapped[start:end] for start, end in bounds]
        self._fingerprints = fingerprints.tolist()

    def similarity(self, measure: Measure, first: int, second: int) -> float | None:
        """The Jaccard similarity, None where the documents are not similar."""
        if measure.max_distance is not None:
            away = simhash.distance(self._fingerprints[first], self._fingerprints[second])
            if away > measure.max_distance:
                return None
        one, other = self._sets[first], self._sets[second]
        if min(len(one), len(other)) < measure.threshold * max(len(one), len(other)):
            return None  # even a subset would be too small
        value = jaccard(one, other)
        return value if value >= measure.threshold else None


class _Bundle(NamedTuple):
    memberships: Sequence[pathlib.Path]
    bundle: int
    spilled: Sequence[pathlib.Path]
    num_new: int
    measure: Measure


def _decide(task: _Bundle) -> tuple[Removals, Comparisons]:
    """The duplicates of a bundle."""
    where, groups = _groups(task)
    candidates = _Candidates(where, task.spilled)
    settled = chunk_of(where) >= task.num_new
    columns = [candidates.order[:, column] for column in range(len(ORDER))]
    documents = np.lexsort([where, *columns[::-1], ~settled])  # the reference first
    found, comparisons = choose(
        documents.tolist(),
        settled,
        groups,
        lambda first, second: candidates.similarity(task.measure, first, second),
    )
    removals = Removals(
        where[[cluster.duplicate for cluster in found]],
        where[[cluster.kept for cluster in found]],
        np.array([cluster.similarity for cluster in found], np.float64),
    )
    return removals, comparisons


def _groups(task: _Bundle) -> tuple[np.ndarray, Groups]:
    """(places, groups of their numbers) of a bundle."""
    parts, offset = [], 0
    for folder in task.memberships:
        records = shuffle.gather([folder], task.bundle, _MEMBERSHIP)
        if len(records):
            records["group"] += offset
            offset = int(records["group"].max()) + 1
            parts.append(records)
    records = np.concatenate(parts)
    where, members = np.unique(records["place"], return_inverse=True)
    return where, Groups(members, shuffle.run_ends([records["group"]]))


def _added_up(
    results: Sequence[tuple[Removals, Comparisons]],
) -> tuple[Removals, Comparisons]:
    none = Removals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    removals = [none, *(removals for removals, _ in results)]
    joined = Removals(*(np.concatenate(column) for column in zip(*removals, strict=True)))
    counts = np.array([comparisons for _, comparisons in results], np.int64).reshape(-1, 4)
    return joined, Comparisons(*counts.sum(axis=0).tolist())
