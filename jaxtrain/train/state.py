"""`TrainState`: everything that changes from step to step, as one pytree and one checkpoint."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Int32, UInt32

from jaxtrain.precision.loss_scaling import LossScale
from jaxtrain.types import Array


class TrainState(NamedTuple):
    """Everything an exact resume needs; the data position is `step` itself.

    `step` counts batches: an update that the guard skipped counts too, because its batch is spent.
    Learning-rate schedules and optimizer counters run on applied updates, `step - skipped`.
    """

    step: Int32[Array, ""]
    params: Any  # nested dict of float32 master weights
    opt_state: Any
    nontrained: Any  # nested dict: model state that no gradient trains (scales, router biases)
    rng: UInt32[Array, "2"]  # raw key data; a step's key is this key folded with `step`
    skipped: Int32[Array, ""]  # updates not applied so far
    skipped_in_row: Int32[Array, ""]  # of these, since the last applied one
    tokens: UInt32[Array, "2"]  # tokens seen, as (high, low) words: int32 ends at 2.1 billion
    loss_scale: LossScale | None = None  # None: the recipe scales no loss

    @property
    def num_updates(self) -> Int32[Array, ""]:
        """Updates applied so far."""
        return self.step - self.skipped


def initial_state(
    params: Any, nontrained: Any, opt_state: Any, seed: int, loss_scale: LossScale | None = None
) -> TrainState:
    """The state before the first step."""
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        step=zero,
        params=params,
        opt_state=opt_state,
        nontrained=nontrained,
        rng=jax.random.key_data(jax.random.key(seed)),
        skipped=zero,
        skipped_in_row=zero,
        tokens=jnp.zeros((2,), jnp.uint32),
        loss_scale=loss_scale,
    )


def add_tokens(tokens: UInt32[Array, "2"], new: UInt32[Array, ""]) -> UInt32[Array, "2"]:
    """(high, low) words plus a number below 2³²."""
    low = tokens[1] + new
    carry = (low < new).astype(jnp.uint32)
    return jnp.stack([tokens[0] + carry, low])


def token_count(tokens: Any) -> int:
    """(high, low) words as a Python int."""
    high, low = (int(word) for word in tokens)
    return (high << 32) + low
