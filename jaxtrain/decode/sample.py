"""Sampling a continuation token by token, each from a full forward pass over the text so far.

There is no key/value cache: simple and exactly the training forward pass, but each token costs as
much as the whole text. For short samples after a run.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from jaxtrain.types import Array


def sample(
    logits: Callable[[Int[Array, "1 T"]], Float[Array, "1 T V"]],
    prompt: Sequence[int],
    num_tokens: int,
    rng: Array,
    temperature: float,
    stop_id: int,
) -> list[int]:
    """Up to `num_tokens` ids after `prompt`, without the stop id.

    Args:
      logits: a causal model on one row; jitted here.
      temperature: divides the logits; 0 takes the most likely id.

    Raises:
      ValueError: for an empty prompt.
    """
    if not prompt:
        raise ValueError("the prompt must have at least one token; begin with BOS.")
    length = len(prompt) + num_tokens
    row = jnp.zeros((1, length), jnp.int32).at[0, : len(prompt)].set(jnp.asarray(prompt, jnp.int32))

    @functools.partial(jax.jit, donate_argnums=0)
    def extend(row, position, rng):
        at_position = jax.lax.dynamic_index_in_dim(logits(row)[0], position - 1, keepdims=False)
        if temperature == 0:
            drawn = jnp.argmax(at_position)
        else:
            drawn = jax.random.categorical(rng, at_position / temperature)
        return row.at[0, position].set(drawn.astype(jnp.int32)), drawn

    ids: list[int] = []
    for position in range(len(prompt), length):
        row, drawn = extend(row, position, jax.random.fold_in(rng, position))
        if int(drawn) == stop_id:
            break
        ids.append(int(drawn))
    return ids
