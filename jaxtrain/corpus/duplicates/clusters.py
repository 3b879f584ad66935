"""From groups of documents that share a key to the documents that are kept.

Documents are taken in order. One is a duplicate where it is similar, by a comparison of the two,
to a kept document of one of its groups; else it is kept. So every removed document is similar to a
kept one (no chains: A like B, B like C, C unlike A keeps C), and the result is a function of the
documents alone.

A group compares a newcomer only with the documents that it keeps, at most its first `MAX_LEADERS`
ones: linear in a group of a million copies of one page, and in one of a million unlike pages that
share a template. What the limit costs: a document may be kept although similar to a kept one,
where every group of both is full before the second of them joins it. Such groups are counted.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

MAX_LEADERS = 64  # at some 10 µs a comparison: under 1 ms for a document in a full group


class Groups(NamedTuple):
    """Groups of documents one after the other."""

    members: np.ndarray  # int64
    ends: np.ndarray  # int64


class Comparisons(NamedTuple):
    """What was compared, and which groups were full."""

    similar: int
    unlike: int
    full_groups: int
    turned_away: int  # memberships of kept documents that a full group did not compare with


class Cluster(NamedTuple):
    """A duplicate and what it is one of."""

    duplicate: int
    kept: int
    similarity: float


def components(files: Sequence[Callable[[], Groups]]) -> tuple[np.ndarray, np.ndarray]:
    """(sorted members of all groups, number of the connected component of each).

    Args:
      files: each gives some of the groups when called; one is in memory at a time.
    """
    known = np.zeros(0, np.int64)
    for load in files:
        known = np.union1d(known, load().members)
    labels = np.arange(len(known), dtype=np.int64)
    number = len(known)
    for load in files:
        members, ends = load()
        if len(members):
            at = labels[np.searchsorted(known, members)]
            sizes = np.diff(ends, prepend=0)
            first = np.repeat(at[ends - sizes], sizes)
            graph = coo_array((np.ones(len(at), np.int8), (first, at)), shape=(number, number))
            number, merged = connected_components(graph, directed=False)
            labels = merged[labels].astype(np.int64)
    return known, labels


def choose(
    documents: Sequence[int],
    settled: np.ndarray,
    groups: Groups,
    similarity: Callable[[int, int], float | None],
) -> tuple[list[Cluster], Comparisons]:
    """Which documents are duplicates.

    Args:
      documents: numbers 0, 1, … in their order.
      settled: by number, whether a document is kept whatever it is like (a reference).
      groups: of numbers.
      similarity: of two documents; None where they are not similar.
    """
    member_of = _groups_of(len(documents), groups)
    leaders: list[list[int]] = [[] for _ in groups.ends]
    place_in_order = {number: place for place, number in enumerate(documents)}
    found: list[Cluster] = []
    unlike = turned_away = 0
    full = set()
    for number in documents:
        own = member_of(number)
        if not settled[number]:
            candidates = {leader for group in own for leader in leaders[group]}
            cluster = None
            for leader in sorted(candidates, key=place_in_order.__getitem__):
                value = similarity(number, leader)
                if value is not None:
                    cluster = Cluster(number, leader, value)
                    break
                unlike += 1
            if cluster:
                found.append(cluster)
                continue
        for group in own:
            if len(leaders[group]) < MAX_LEADERS:
                leaders[group].append(number)
            else:
                full.add(group)
                turned_away += 1
    return found, Comparisons(len(found), unlike, len(full), turned_away)


def _groups_of(number: int, groups: Groups) -> Callable[[int], list[int]]:
    """A function from a document to its groups."""
    sizes = np.diff(groups.ends, prepend=0)
    order = np.argsort(groups.members, kind="stable")
    group = np.repeat(np.arange(len(sizes)), sizes)[order]
    bounds = np.searchsorted(groups.members[order], np.arange(number + 1)).tolist()
    return lambda member: group[bounds[member] : bounds[member + 1]].tolist()


def bundles(labels: np.ndarray, size: int) -> np.ndarray:
    """A bundle for each component: of about `size` documents, more where one component has more."""
    sizes = np.bincount(labels) if len(labels) else np.zeros(0, np.int64)
    return (np.cumsum(sizes) - sizes) // size
