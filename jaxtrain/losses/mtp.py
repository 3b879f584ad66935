"""Losses of modules that predict further tokens (arXiv 2412.19437, section 2.2).

    minimised = CE(t + 1)  +  λ / k · Σ_i CE(t + 1 + i)          i = 1 … k, each a mean of its own

Depth i is scored at position t by the target of position t + i of the same document and counts as
that target does, so the last i places of a document have none, and fine-tuning trains what it
trains. The loss of a depth is the main one's, with its label smoothing and z-loss, by the same head
in the same chunks. Its sum and its weight go to the model's `DepthLosses`, which know λ; the loss
that is logged and what it is divided by have no part of it.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxtrain.types import Array, Batch


class DepthSums(Protocol):
    """Sums over weighted targets; `loss` carries the gradient."""

    @property
    def loss(self) -> Array: ...
    @property
    def nll(self) -> Array: ...
    @property
    def correct(self) -> Array: ...


def note_depths(
    model: Any,
    h_BTD: Float[Array, "B T D"],
    batch: Batch,
    rng: Any,
    sums_of: Callable[[jax.Array, Batch], DepthSums],
) -> dict[str, tuple[Array, Array]]:
    """Notes every depth's loss in `model.mtp_losses`; returns their metrics as (sum, weight).

    Args:
      h_BTD: what the head takes of the model itself.
      rng: of dropout; None: none.
      sums_of: the loss of hidden states that predict a batch's targets.
    """
    metrics, losses, weights = {}, [], []
    for depth in range(model.config.num_mtp_layers):
        further = ahead(batch, depth + 1)
        h_BTD = model.predict_further(
            depth,
            h_BTD,
            further.inputs,
            further.positions,
            further.segment_ids,
            # Behind the keys of the model's own layers.
            None if rng is None else jax.random.fold_in(rng, model.config.num_layers + depth),
        )
        sums, weight = sums_of(h_BTD, further), jnp.sum(further.loss_weights)
        name = f"mtp{depth + 1}"
        metrics |= {f"{name}/nll": (sums.nll, weight), f"{name}/accuracy": (sums.correct, weight)}
        losses.append(sums.loss)
        weights.append(weight)
    model.mtp_losses.loss_sums.note(jnp.stack(losses))
    model.mtp_losses.weight_sums.note(jnp.stack(weights))
    return metrics


def ahead(batch: Batch, num: int) -> Batch:
    """What stands `num` tokens further in the same document; filler where that has ended."""

    def shifted(x_BT: Array) -> jax.Array:
        return jnp.roll(x_BT, -num, axis=1)

    length = batch.inputs.shape[1]
    is_in_row_BT = (jnp.arange(length, dtype=jnp.int32) < length - num)[None]
    is_same_BT = (shifted(batch.segment_ids) == batch.segment_ids) & is_in_row_BT
    return Batch(
        # Across documents too: where rows do not keep them apart, a later place sees this one.
        inputs=shifted(batch.inputs),
        targets=shifted(batch.targets),
        loss_weights=jnp.where(is_same_BT, shifted(batch.loss_weights), 0.0),
        positions=batch.positions + num,
        segment_ids=jnp.where(is_same_BT, batch.segment_ids, 0),
    )
