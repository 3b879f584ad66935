"""From planned pieces to the arrays of a `Batch`, for many rows at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtrain.data.answers import STEPS
from jaxtrain.data.packing import Pieces
from jaxtrain.data.store import Store
from jaxtrain.types import Batch


def assemble(filled: Sequence[tuple[Store, Pieces]], num_rows: int, seq_len: int) -> Batch:
    """A batch of rows; `Pieces.rows` says which. Rows that no piece fills are filler.

    Loss weights say how much a position's target counts: 0 or 1 unless the store has weights. In
    stores of "steps" the target is the label of the step that ends at the position.
    """
    # One column more than positions: a document that goes on after the row has its next token
    # there, so that inputs and targets are the same tokens one column apart.
    width = seq_len + 1
    tokens = np.zeros((num_rows, width), np.int32)
    for store, pieces in filled:
        offsets = pieces.rows * width + pieces.columns
        lengths = pieces.lengths + pieces.continues
        store.read(pieces.starts, lengths, offsets, tokens.reshape(-1))

    spans = _spans([pieces for _, pieces in filled], num_rows, seq_len)
    segment_ids = np.repeat(spans.segment_ids, spans.lengths)
    positions = np.arange(num_rows * seq_len, dtype=np.int32)
    positions -= np.repeat(spans.starts, spans.lengths)
    loss_weights = (segment_ids > 0).astype(np.float32)
    loss_weights[(spans.starts + spans.lengths - 1)[~spans.continues]] = 0
    shape = (num_rows, seq_len)
    loss_weights = loss_weights.reshape(shape)
    if any(store.has_mask for store, _ in filled):
        loss_weights *= _weights(filled, num_rows, width)[:, 1:]  # a target's own: one column on
    batch = Batch(
        inputs=np.ascontiguousarray(tokens[:, :-1]),
        targets=np.ascontiguousarray(tokens[:, 1:]),
        loss_weights=loss_weights,
        positions=positions.reshape(shape),
        segment_ids=segment_ids.reshape(shape),
    )
    return _judged(batch, filled) if any(store.answers == STEPS for store, _ in filled) else batch


def _judged(batch: Batch, filled: Sequence[tuple[Store, Pieces]]) -> Batch:
    """The batch with labels as targets, and weights at the very tokens that end a step."""
    num_rows, seq_len = batch.inputs.shape
    targets = np.zeros_like(batch.inputs)
    for store, pieces in filled:
        offsets = pieces.rows * seq_len + pieces.columns
        store.read_labels(pieces.starts, pieces.lengths, offsets, targets.reshape(-1))
    loss_weights = _weights(filled, num_rows, seq_len + 1)[:, :-1] * (batch.segment_ids > 0)
    return batch._replace(targets=targets, loss_weights=loss_weights)


def _weights(filled: Sequence[tuple[Store, Pieces]], num_rows: int, width: int) -> np.ndarray:
    """How much each token of `assemble` counts."""
    weights = np.ones((num_rows, width), np.float32)
    for store, pieces in filled:
        if store.has_mask:
            offsets = pieces.rows * width + pieces.columns
            lengths = pieces.lengths + pieces.continues
            store.read_weights(pieces.starts, lengths, offsets, weights.reshape(-1))
    return weights


def per_segment(batch: Batch) -> Batch:
    """The batch with loss weights that add up to 1 in each segment with something trained."""
    num_rows, length = batch.segment_ids.shape
    number = batch.segment_ids + np.arange(num_rows)[:, None] * (length + 1)
    sums = np.bincount(number.ravel(), batch.loss_weights.ravel())
    weights = batch.loss_weights / np.where(sums > 0, sums, 1)[number]
    return batch._replace(loss_weights=weights.astype(np.float32))


class _Spans(NamedTuple):
    """All positions of a batch in order, filler included; starts count through the flat batch."""

    starts: np.ndarray
    lengths: np.ndarray
    segment_ids: np.ndarray
    continues: np.ndarray


def _spans(filled: Sequence[Pieces], num_rows: int, seq_len: int) -> _Spans:
    used = np.zeros(num_rows, np.int64)
    for pieces in filled:
        used += np.bincount(pieces.rows, pieces.lengths, num_rows).astype(np.int64)
    gaps = np.flatnonzero(used < seq_len)
    parts = [(gaps * seq_len + used[gaps], seq_len - used[gaps], gaps * 0, gaps < 0)]
    for pieces in filled:
        starts = pieces.rows * seq_len + pieces.columns
        parts.append((starts, pieces.lengths, pieces.numbers + 1, pieces.continues))
    starts, lengths, segment_ids, continues = (np.concatenate(x) for x in zip(*parts, strict=True))
    order = np.argsort(starts, kind="stable")
    return _Spans(
        starts[order].astype(np.int32),
        lengths[order],
        segment_ids[order].astype(np.int32),
        continues[order],
    )
