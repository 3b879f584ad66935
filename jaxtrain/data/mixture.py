"""Which source gives which global row: a closed form, so that no draw depends on saved state.

Within a phase of constant weights, source i's k-th draw is due at time (k + ½) / wᵢ, and draws
happen in the order of their due times, ties by source. This is Webster's (Sainte-Laguë) method of
apportionment: after any number of draws each source has its share to within about one draw.

A phase begins where a weight changes and where a source without repetition gives its last row.
Only rows up to there decide the phases before, so that editing a schedule's future leaves its past
as it was.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtrain.data.ranges import ranges


class Phase(NamedTuple):
    """A stretch of global rows with constant weights."""

    first_row: int
    weights: np.ndarray  # per source, summing to 1; 0: not drawn
    counts: np.ndarray  # draws per source before first_row


class Draws(NamedTuple):
    """Consecutive global rows: which source each comes from, and which of its draws it is."""

    sources: np.ndarray
    indexes: np.ndarray


class Mixture:
    """The assignment of global rows to sources."""

    def __init__(
        self,
        schedule: Sequence[tuple[int, Sequence[float]]],
        limits: Sequence[int] | None = None,
    ):
        """Lays out the phases.

        Args:
          schedule: pairs (first global row, weights), rows rising from 0; some weight is positive.
          limits: how often each source can be drawn; None: without end.
        """
        self.num_sources = len(schedule[0][1])
        self.phases: list[Phase] = []
        #: Rows until no source with weight is left; None: without end.
        self.num_rows: int | None = None
        counts = np.zeros(self.num_sources, np.int64)
        for index, (first_row, weights) in enumerate(schedule):
            stop = schedule[index + 1][0] if index + 1 < len(schedule) else None
            row = first_row
            while row != stop:
                active = np.asarray(weights, np.float64)
                if limits is not None:
                    active = np.where(counts < limits, active, 0.0)
                if not active.any():
                    self.num_rows = row
                    return
                # Exactly rounded, so that sources without weight do not change it by a bit.
                phase = Phase(row, active / math.fsum(active), counts)
                self.phases.append(phase)
                length = None if limits is None else _until_exhausted(phase, np.asarray(limits))
                if stop is not None and (length is None or row + length > stop):
                    length = stop - row
                if length is None:
                    return
                row += length
                counts = counts + _counts(phase.weights, length)

    def counts(self, row: int) -> np.ndarray:
        """Draws per source among the global rows before `row`."""
        if not self.phases:
            return np.zeros(self.num_sources, np.int64)
        phase = self._phase(row)
        return phase.counts + _counts(phase.weights, self._end(row) - phase.first_row)

    def draws(self, first: int, stop: int) -> Draws:
        """The draws of global rows [first, stop), without those past the mixture's end."""
        found = []
        stop = self._end(stop)
        while first < stop:
            phase = self._phase(first)
            later = [p.first_row for p in self.phases if p.first_row > phase.first_row]
            until = min([stop, *later[:1]])
            before = _counts(phase.weights, first - phase.first_row)
            sources, indexes = _next_draws(phase.weights, before, until - first)
            found.append((sources, indexes + phase.counts[sources]))
            first = until
        if not found:
            return Draws(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return Draws(*(np.concatenate(each) for each in zip(*found, strict=True)))

    def _end(self, row: int) -> int:
        return row if self.num_rows is None else min(row, self.num_rows)

    def _phase(self, row: int) -> Phase:
        return self.phases[sum(phase.first_row <= row for phase in self.phases) - 1]


def _due(indexes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """When draws are due. Every comparison of times uses this, so that rounding cannot matter."""
    return (indexes + 0.5) / weights


def _due_before(weights: np.ndarray, time: float | np.ndarray) -> np.ndarray:
    """How many draws of each source (weights > 0) are due before `time`."""
    counts = np.maximum(np.floor(weights * time + 0.5), 0).astype(np.int64)
    # Rounding can make this one too many, never too few: past a due time, weights * time is at
    # least k + 0.5 after rounding too, as that number is exact.
    return counts - ((counts > 0) & (_due(counts - 1, weights) >= time))


def _counts(weights: np.ndarray, num_draws: int) -> np.ndarray:
    """Draws per source among a phase's first `num_draws`."""
    active = np.flatnonzero(weights)
    counts = np.zeros(len(weights), np.int64)
    # Up to this time at most num_draws are due, as each source's count is at most w·t + ½.
    counts[active] = _due_before(weights[active], num_draws - len(active) / 2 - 1)
    sources, _ = _next_draws(weights, counts, num_draws - int(counts.sum()))
    return counts + np.bincount(sources, minlength=len(weights))


def _next_draws(weights: np.ndarray, counts: np.ndarray, num_draws: int):
    """(sources, indexes) of the draws after the first `counts`, which must be a whole beginning."""
    active = np.flatnonzero(weights)
    # By this time all of them are due, as each source's count is at least w·t - ½.
    time = int(counts.sum()) + num_draws + len(active) / 2 + 1
    candidates = np.maximum(_due_before(weights[active], time) - counts[active], 0)
    sources = np.repeat(active, candidates)
    indexes = ranges(counts[active], candidates)
    order = np.lexsort((sources, _due(indexes, weights[sources])))[:num_draws]
    return sources[order], indexes[order]


def _until_exhausted(phase: Phase, limits: np.ndarray) -> int:
    """Rows of a phase up to the first one that is some source's last."""
    active = np.flatnonzero(phase.weights)
    weights = phase.weights[active]
    last = (limits - phase.counts)[active] - 1
    first_out = np.inf
    for place, time in enumerate(_due(last, weights)):
        before = _due_before(weights, time)
        ties = (_due(before, weights) == time) & (np.arange(len(active)) < place)
        first_out = min(first_out, int((before + ties).sum()) + 1)
    return int(first_out)
