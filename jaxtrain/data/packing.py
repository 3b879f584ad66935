"""How documents fill rows of `seq_len` positions, planned from their lengths alone.

    concat            the token stream cut every seq_len; documents attend across
    concat_isolated   the same cuts, but documents are segments of their own
    best_fit          best-fit decreasing: whole documents in as few rows as they need

Every token of a store is the input of exactly one position per epoch and none is dropped. What a
cut separates goes on in another row, as a segment of its own; the token before the cut still has
the one after it as its target. Filler occurs only at the end of a row. The order of rows is that of
the store (best_fit: of the bins); each epoch shuffles it anew, see `permutation.py`.

Memory: 8 bytes per document (its end); best_fit 20 bytes per piece more.
"""

import bisect
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from jaxtrain.data.ranges import ranges


class Pieces(NamedTuple):
    """Runs of the token stream that fill rows: parallel arrays, by row and then from left to right.

    `continues` says that a piece's last position is trained on the token after it. Where that token
    is not in the row, the piece ends with the row.
    """

    rows: np.ndarray
    starts: np.ndarray  # token index in the store
    lengths: np.ndarray
    continues: np.ndarray

    @property
    def columns(self) -> np.ndarray:
        """Where in its row each piece begins."""
        before = np.cumsum(self.lengths) - self.lengths
        return before - before[self._first_of_row]

    @property
    def numbers(self) -> np.ndarray:
        """The number of each piece within its row, from 0."""
        return np.arange(len(self.rows)) - self._first_of_row

    @property
    def _first_of_row(self) -> np.ndarray:
        return np.searchsorted(self.rows, self.rows, side="left")


@dataclass(frozen=True)
class Ledger:
    """What one epoch of a plan does with the tokens of its store."""

    seq_len: int
    num_rows: int
    tokens_in: int
    tokens_out: int
    num_targets: int  # positions with a token to predict
    num_documents: int
    num_cut_documents: int  # spread over more than one row
    max_segments: int  # in one row

    @property
    def tokens_dropped(self) -> int:
        return self.tokens_in - self.tokens_out

    @property
    def utilisation(self) -> float:
        """The fraction of positions that hold a token."""
        return self.tokens_out / max(self.num_rows * self.seq_len, 1)


class Plan(Protocol):
    """Which pieces of a token stream each row holds."""

    num_rows: int

    def pieces(self, rows: np.ndarray) -> Pieces:
        """The pieces of these rows; `Pieces.rows` counts within the request."""
        ...

    def ledger(self) -> Ledger:
        """Counts over all rows."""
        ...


def make_plan(packing: str, document_ends: np.ndarray, seq_len: int) -> Plan:
    """The plan of a packing for documents that end at these token indexes."""
    return _PLANS[packing](document_ends, seq_len)


class _Concat:
    """The stream cut every seq_len tokens, one segment a row."""

    def __init__(self, document_ends: np.ndarray, seq_len: int):
        self._ends = document_ends
        self._seq_len = seq_len
        self._num_tokens = int(document_ends[-1]) if len(document_ends) else 0
        self.num_rows = -(-self._num_tokens // seq_len)

    def pieces(self, rows: np.ndarray) -> Pieces:
        starts, stops = self._spans(rows)
        return Pieces(np.arange(len(rows)), starts, stops - starts, stops < self._num_tokens)

    def ledger(self) -> Ledger:
        starts, stops = self._spans(np.arange(self.num_rows))
        first_rows, last_rows = self._rows_of_documents()
        return Ledger(
            seq_len=self._seq_len,
            num_rows=self.num_rows,
            tokens_in=self._num_tokens,
            tokens_out=int((stops - starts).sum()),
            num_targets=self._num_targets(),
            num_documents=len(self._ends),
            num_cut_documents=int((last_rows > first_rows).sum()),
            max_segments=self._max_segments(first_rows, last_rows),
        )

    def _spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        starts = rows * self._seq_len
        return starts, np.minimum(starts + self._seq_len, self._num_tokens)

    def _rows_of_documents(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and last row of each document that is not empty."""
        starts, lengths = _starts_and_lengths(self._ends)
        full = lengths > 0
        return starts[full] // self._seq_len, (self._ends[full] - 1) // self._seq_len

    def _num_targets(self) -> int:
        return max(self._num_tokens - 1, 0)

    def _max_segments(self, first_rows: np.ndarray, last_rows: np.ndarray) -> int:
        return min(self.num_rows, 1)


class _ConcatIsolated(_Concat):
    """The stream cut every seq_len tokens, each document in a row a segment."""

    def pieces(self, rows: np.ndarray) -> Pieces:
        starts, stops = self._spans(rows)
        first = np.searchsorted(self._ends, starts, side="right")
        last = np.searchsorted(self._ends, stops, side="left")
        documents = ranges(first, last - first + 1)
        of_rows = np.repeat(np.arange(len(rows)), last - first + 1)
        document_starts = np.where(documents > 0, self._ends[documents - 1], 0)
        begins = np.maximum(document_starts, starts[of_rows])
        ends = np.minimum(self._ends[documents], stops[of_rows])
        continues = self._ends[documents] > stops[of_rows]
        full = ends > begins  # empty documents make no piece
        return Pieces(of_rows[full], begins[full], (ends - begins)[full], continues[full])

    def _num_targets(self) -> int:
        return _isolated_targets(self._ends)

    def _max_segments(self, first_rows: np.ndarray, last_rows: np.ndarray) -> int:
        # A row's segments: the documents that begin in it, and one that began before it.
        begun = np.bincount(first_rows, minlength=self.num_rows)
        later_rows = last_rows[last_rows > first_rows]
        carried = np.zeros(self.num_rows, np.int64)
        carried[later_rows] = 1
        return int((begun + carried).max(initial=0))


class _BestFit:
    """Best-fit decreasing over whole documents; one over a row in length first fills whole rows."""

    def __init__(self, document_ends: np.ndarray, seq_len: int):
        self._ends = document_ends
        self._seq_len = seq_len
        starts, lengths = _starts_and_lengths(document_ends)
        num_full = lengths // seq_len
        full = np.repeat(starts, num_full) + ranges(np.zeros_like(num_full), num_full) * seq_len
        has_rest = lengths % seq_len > 0
        rests = (starts + num_full * seq_len)[has_rest]
        rest_lengths = (lengths % seq_len)[has_rest]
        order, bins, num_bins = _best_fit_decreasing(rest_lengths, seq_len)
        by_bin = order[np.argsort(bins, kind="stable")]
        self._starts = np.concatenate([full, rests[by_bin]])
        self._lengths = np.concatenate(
            [np.full(len(full), seq_len, np.int32), rest_lengths[by_bin].astype(np.int32)]
        )
        in_bins = np.bincount(bins, minlength=num_bins)
        self._row_ends = np.cumsum(np.concatenate([np.ones(len(full), np.int64), in_bins]))
        self.num_rows = len(self._row_ends)

    def pieces(self, rows: np.ndarray) -> Pieces:
        first = np.where(rows > 0, self._row_ends[rows - 1], 0)
        counts = self._row_ends[rows] - first
        which = ranges(first, counts)
        starts, lengths = self._starts[which], self._lengths[which].astype(np.int64)
        document_ends = self._ends[np.searchsorted(self._ends, starts, side="right")]
        of_rows = np.repeat(np.arange(len(rows)), counts)
        return Pieces(of_rows, starts, lengths, starts + lengths < document_ends)

    def ledger(self) -> Ledger:
        return Ledger(
            seq_len=self._seq_len,
            num_rows=self.num_rows,
            tokens_in=int(self._ends[-1]) if len(self._ends) else 0,
            tokens_out=int(self._lengths.sum(dtype=np.int64)),
            num_targets=_isolated_targets(self._ends),
            num_documents=len(self._ends),
            num_cut_documents=int((_starts_and_lengths(self._ends)[1] > self._seq_len).sum()),
            max_segments=int(np.diff(self._row_ends, prepend=0).max(initial=0)),
        )


_PLANS = {"concat": _Concat, "concat_isolated": _ConcatIsolated, "best_fit": _BestFit}


def _starts_and_lengths(document_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.diff(document_ends, prepend=0)
    return document_ends - lengths, lengths


def _isolated_targets(document_ends: np.ndarray) -> int:
    """All tokens but the first of each document are somebody's target."""
    lengths = _starts_and_lengths(document_ends)[1]
    return int(lengths.sum() - (lengths > 0).sum())


def _best_fit_decreasing(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Puts items into bins: longest first, each where it leaves the least room.

    Items of one length and bins with one room are interchangeable, so they are handled as groups;
    a bin that takes an item takes as many of the same length as fit, for it stays the best fit.
    About three groups are touched per distinct length, whatever the number of items. (Exact
    best-fit decreasing; Johnson 1973: at most 11/9 of the least number of bins, plus 4.)

    Returns:
      order: indexes of the items, longest first.
      bins: the bin of each item of `order`.
      num_bins: how many there are.
    """
    dtype = np.uint16 if capacity < 1 << 16 else np.int64  # 16 bits are sorted by radix
    order = np.argsort((capacity - lengths).astype(dtype), kind="stable")
    bins = np.empty(len(lengths), np.int64)
    groups: dict[int, list[np.ndarray]] = {}  # room left -> open bins
    rooms: list[int] = []  # the keys of groups, rising
    num_bins = placed = 0

    def open_group(room: int, members: np.ndarray) -> None:
        if room and len(members):
            if room not in groups:
                groups[room] = []
                bisect.insort(rooms, room)
            groups[room].append(members)

    by_length = np.bincount(lengths, minlength=1)
    for length in np.flatnonzero(by_length)[::-1].tolist():
        left = int(by_length[length])
        while left:
            best = bisect.bisect_left(rooms, length)
            if best < len(rooms):
                room = rooms[best]
                members = groups[room].pop()
                if not groups[room]:
                    del groups[room], rooms[best]
            else:
                room, count = capacity, -(-left // (capacity // length))
                members = np.arange(num_bins, num_bins + count)
                num_bins += count
            fits = room // length
            used = members[: -(-left // fits)]
            now = min(left, len(used) * fits)
            bins[placed : placed + now] = np.repeat(used, fits)[:now]
            open_group(room, members[len(used) :])
            in_last = now - (len(used) - 1) * fits
            open_group(room - fits * length, used[:-1])
            open_group(room - in_last * length, used[-1:])
            placed += now
            left -= now
    return order, bins, num_bins
