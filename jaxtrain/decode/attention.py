"""A layer's attention on a prompt, and on what the cache holds of a text."""

import functools

import jax.numpy as jnp
from jaxtyping import Float, Int

from jaxtrain.decode import cache as cache_lib
from jaxtrain.decode.cache import LayerCache
from jaxtrain.models import rope
from jaxtrain.models.gqa import Attention, Entries
from jaxtrain.types import Array


def on_prompt(
    attention: Attention,
    x_BTD: Float[Array, "B T D"],
    rotation: rope.Rotation,
    *,
    window: int | None,
    implementation: str,
) -> tuple[Float[Array, "B T D"], Entries]:
    """What training computes, and the entries of every token."""
    q_BTNH, entries = attention.heads(x_BTD, rotation)
    out_BTNH = attention.attend(q_BTNH, entries, None, window=window, implementation=implementation)
    return attention.output(out_BTNH), entries


def on_cache(
    attention: Attention,
    x_BTD: Float[Array, "B T D"],
    rotation: rope.Rotation,
    held: LayerCache,
    rows_B: Int[Array, "B"],
    places_BT: Int[Array, "B T"],
    *,
    window: int | None,
) -> tuple[Float[Array, "B T D"], LayerCache]:
    """More tokens of each row, each on all up to itself; the layer's cache with them.

    Args:
      rows_B: the slot that a row writes to; one out of range: it writes nothing.
      places_BT: where the tokens stand in their rows, one behind the other. Below 0 there is none:
        nothing is written, and what comes out means nothing.
    """
    q_BTNH, entries = attention.heads(x_BTD, rotation)
    put = functools.partial(
        cache_lib.write, slot_P=rows_B, positions_PT=places_BT, length_P=places_BT[:, -1] + 1
    )
    layer = tuple(
        attention.constrain(put(held_BKSH, new_BTKH), "BKSH")
        for held_BKSH, new_BTKH in zip(held, entries, strict=True)
    )
    num_places, length_BT = layer[0].shape[2], jnp.maximum(places_BT, 0) + 1
    out_BTNH = jnp.stack(
        [  # few, and each sees other places
            attention.attend_cached(
                q_BTNH[:, at], layer, cache_lib.visible(num_places, length_BT[:, at], window)
            )
            for at in range(places_BT.shape[1])
        ],
        axis=1,
    )
    return attention.output(out_BTNH), layer
