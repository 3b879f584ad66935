"""Rows of whole groups: answers that are judged together are packed like one document."""

import dataclasses

import numpy as np

from jaxtrain.data.packing import Ledger, Pieces, make_plan
from jaxtrain.data.ranges import ranges

PACKING = "best_fit"


class GroupPlan:
    """Best-fit decreasing over whole groups; each of their documents is a piece of its own.

    A plan as in `packing.py`, of documents that are not empty. A group longer than a row is counted
    in the ledger as cut, and cannot be served.
    """

    def __init__(self, document_ends: np.ndarray, group_ends: np.ndarray, seq_len: int):
        assert (np.diff(document_ends, prepend=0) > 0).all(), "a store of answers has empty ones"
        self._document_ends = document_ends
        self._group_ends = group_ends
        self._token_ends = document_ends[group_ends - 1]  # of the groups
        self._groups = make_plan(PACKING, self._token_ends, seq_len)
        self.num_rows = self._groups.num_rows

    def pieces(self, rows: np.ndarray) -> Pieces:
        groups = self._groups.pieces(rows)
        assert not groups.continues.any(), "a group is longer than a row"
        first, sizes = self._documents(groups)
        documents = ranges(first, sizes)
        ends = self._document_ends[documents]
        starts = np.where(documents > 0, self._document_ends[documents - 1], 0)
        of_rows = np.repeat(groups.rows, sizes)
        return Pieces(of_rows, starts, ends - starts, np.zeros(len(documents), bool))

    def ledger(self) -> Ledger:
        ledger = self._groups.ledger()
        groups = self._groups.pieces(np.arange(self.num_rows))
        _, sizes = self._documents(groups)
        segments = np.bincount(groups.rows, sizes, self.num_rows)
        lengths = np.diff(self._token_ends, prepend=0)
        cut = np.diff(self._group_ends, prepend=0)[lengths > ledger.seq_len]
        return dataclasses.replace(
            ledger,
            num_targets=ledger.tokens_in - len(self._document_ends),
            num_documents=len(self._document_ends),
            num_cut_documents=int(cut.sum()),
            max_segments=int(segments.max(initial=0)),
        )

    def _documents(self, groups: Pieces) -> tuple[np.ndarray, np.ndarray]:
        """Per piece that is a group: its first document, and how many it has."""
        numbers = np.searchsorted(self._token_ends, groups.starts, side="right")
        first = np.where(numbers > 0, self._group_ends[numbers - 1], 0)
        return first, self._group_ends[numbers] - first
