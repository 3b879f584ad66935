"""All rows of a source once, in its plan's order: held-out sets, and what is computed of a store.

for block in plan_rows(source, batch_size): …         a teacher over every token of a store
for block in answer_rows(source, batch_size): …       a reference over every answer
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxtrain.data.batches import AnyBatch, BatchMaker
from jaxtrain.data.packing import Pieces
from jaxtrain.data.sources import Source
from jaxtrain.types import AnswerBatch, Batch


class PlanRows(NamedTuple):
    """Some rows of a plan as a batch; where the plan ends it is filled up."""

    batch: AnyBatch
    pieces: Pieces  # which tokens of the store lie where in the batch
    first_row: int  # of the plan
    stop_row: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and positions of the batch."""
        batch = self.batch if isinstance(self.batch, Batch) else self.batch.tokens
        return batch.inputs.shape


class AnswerRows(NamedTuple):
    """Rows of answers, and which document of the store each of their segments is."""

    batch: AnswerBatch
    documents: np.ndarray  # int64 [B, Q]; 0 where not valid
    valid: np.ndarray  # bool [B, Q]


def plan_rows(
    source: Source,
    batch_size: int,
    part: slice | None = None,
    *,
    first: int = 0,
    maker: BatchMaker | None = None,
) -> Iterator[PlanRows]:
    """The rows of a source from row `first` on, or `part` of each batch of them.

    Args:
      maker: makes the batches; by default one without references or teacher.
    """
    maker = maker or BatchMaker([source], source.config, 0)
    for start in range(first, source.num_rows, batch_size):
        rows = start + np.arange(batch_size)[part or slice(None)]
        places = np.flatnonzero(rows < source.num_rows)
        pieces = source.plan.pieces(rows[places])
        placed = pieces._replace(rows=places[pieces.rows])
        stop = min(start + batch_size, source.num_rows)
        yield PlanRows(maker.make([(source, placed)], rows), placed, start, stop)


def answer_rows(source: Source, batch_size: int, part: slice | None = None) -> Iterator[AnswerRows]:
    """The rows of a store of answers, or `part` of each batch of them.

    Raises:
      ValueError: where the store holds no answers.
    """
    if source.store.answers is None:
        raise ValueError(f"{source.name} ({source.store.path}) is no store of answers")
    for block in plan_rows(source, batch_size, part):
        assert isinstance(block.batch, AnswerBatch)
        documents = np.zeros(block.batch.group_ids.shape, np.int64)
        documents[block.pieces.rows, block.pieces.numbers] = source.documents(block.pieces)
        yield AnswerRows(block.batch, documents, block.batch.group_ids > 0)
