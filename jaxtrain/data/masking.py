"""Masked-LM targets: which tokens are chosen, and what the model sees in their place.

As in BERT (Devlin et al. 2019): each token is chosen with probability `mask_frac`; a chosen one is
replaced by the mask token (80 %), by a random id (10 %) or kept (10 %). Only chosen tokens have a
loss weight; filler is never chosen. The draw is a hash of (key, global row, position): the same
whichever host makes the row and however rows are batched.
"""

import numpy as np

from jaxtrain.data.permutation import hash_indexes, mix
from jaxtrain.types import Batch

_MASKED, _RANDOM = 0.8, 0.1  # of the chosen; the rest is kept


def mask_tokens(
    batch: Batch, rows: np.ndarray, *, key: int, mask_frac: float, mask_id: int, vocab_size: int
) -> Batch:
    """The batch with masked inputs, the unmasked ones as targets, and weights on the chosen."""
    row_keys = hash_indexes(key, rows)[:, None]
    draws = hash_indexes(row_keys, np.arange(batch.inputs.shape[1])[None])
    # The upper and lower halves of the hash are independent draws in units of 2⁻³².
    chosen = (draws >> np.uint64(32) < _share(mask_frac)) & (batch.segment_ids > 0)
    action = draws & np.uint64(0xFFFFFFFF)
    masked = chosen & (action < _share(_MASKED))
    random = chosen & (action >= _share(_MASKED)) & (action < _share(_MASKED + _RANDOM))
    inputs = np.where(masked, np.int32(mask_id), batch.inputs)
    inputs[random] = (mix(draws[random]) % np.uint64(vocab_size)).astype(np.int32)
    return batch._replace(
        inputs=inputs, targets=batch.inputs, loss_weights=chosen.astype(np.float32)
    )


def _share(fraction: float) -> np.uint64:
    return np.uint64(round(fraction * 2**32))
