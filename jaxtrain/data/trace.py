"""Which documents a row was made of: for the guard, incident logs and whoever reads batches."""

from typing import NamedTuple

import numpy as np

from jaxtrain.data.packing import Pieces
from jaxtrain.data.sources import Source


class SegmentTrace(NamedTuple):
    """A run of a row's positions that hold tokens of one document.

    With packing="concat" the documents of a row share segment id 1.
    """

    segment_id: int
    column: int
    length: int
    document: int  # its number in the store
    document_id: str
    source: str  # file and offset, as the store's writer gave it
    document_offset: int  # tokens of the document before this run


class RowTrace(NamedTuple):
    """A row of a batch."""

    row: int  # global row number
    source: str  # name in the config
    epoch: int
    segments: tuple[SegmentTrace, ...]


def documents_of(trace: RowTrace) -> list[str]:
    """The documents of a row as text on one line each: source, id, and file and offset."""
    return [f"{trace.source} {s.document_id!r} at {s.source!r}" for s in trace.segments]


def trace_rows(
    source: Source, global_rows: np.ndarray, draws: np.ndarray, pieces: Pieces
) -> list[RowTrace]:
    """The traces of one source's rows; `draws` are in the order of the rows of `pieces`."""
    rows = np.unique(pieces.rows)
    return [
        RowTrace(
            row=int(global_rows[row]),
            source=source.name,
            epoch=int(draw) // source.num_rows,
            segments=tuple(_segments(source, pieces, row)),
        )
        for row, draw in zip(rows, draws, strict=True)
    ]


def _segments(source: Source, pieces: Pieces, row: int):
    ends = source.store.document_ends
    column = 0
    of_row = np.flatnonzero(pieces.rows == row)
    for number, piece in enumerate(of_row, 1):
        start, length = int(pieces.starts[piece]), int(pieces.lengths[piece])
        document = int(np.searchsorted(ends, start, side="right"))
        while length:
            first_token = int(ends[document - 1]) if document else 0
            here = min(length, int(ends[document]) - start)
            if here:
                document_id, origin = source.store.document_name(document)
                offset = start - first_token
                yield SegmentTrace(number, column, here, document, document_id, origin, offset)
            column, start, length, document = (
                column + here,
                start + here,
                length - here,
                document + 1,
            )
