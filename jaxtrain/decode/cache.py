"""The key/value cache: what each layer keeps of the tokens so far, in arrays of fixed size.

Each row of the batch is a slot that one request holds. A layer without a window has a place for
every position up to the engine's limit; a layer with one is a ring of as many places as the window
is wide, in which position p lies at p mod size. Which position a place holds follows from the
number of tokens alone, so that nothing else is stored and nothing stale can be read: a place counts
only if the position it must hold is one the row has written.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from jaxtrain.models.config import ModelConfig
from jaxtrain.types import Array


class LayerCache(NamedTuple):
    """Keys, turned by their positions, and values of one layer."""

    k_BKSH: Float[Array, "B K S H"]
    v_BKSH: Float[Array, "B K S H"]


Cache = tuple[LayerCache, ...]  #: one for each layer


def make_cache(config: ModelConfig, num_slots: int, max_len: int, dtype: jnp.dtype) -> Cache:
    """An empty cache for requests of up to `max_len` tokens, prompt and answer together."""

    def layer(index: int) -> LayerCache:
        window = config.layer_window(index)
        size = max_len if window is None else min(window, max_len)
        shape = (num_slots, config.num_kv_heads, size, config.head_dim)
        return LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    return tuple(layer(index) for index in range(config.num_layers))


def write(
    entry_BKSH: Float[Array, "B K S H"],
    new_PTKH: Float[Array, "P T K H"],
    slot_P: Int[Array, "P"],
    positions_PT: Int[Array, "P T"],
    length_P: Int[Array, "P"],
) -> Float[Array, "B K S H"]:
    """The entry with row p's tokens at their positions in slot `slot_P[p]`.

    Positions from `length_P` on are filler and are not written; of more tokens than a ring holds,
    the last ones stay.
    """
    size = entry_BKSH.shape[2]
    kept = (positions_PT < length_P[:, None]) & (positions_PT >= length_P[:, None] - size)
    place_PT = jnp.where(kept, positions_PT % size, size)  # `size` is out of range: dropped
    return entry_BKSH.at[slot_P[:, None], :, place_PT].set(
        new_PTKH.astype(entry_BKSH.dtype), mode="drop"
    )


def held_positions(size: int, length_B: Int[Array, "B"]) -> Int[Array, "B S"]:
    """The position that each place of a row of `length_B` tokens holds; negative where none."""
    place = jnp.arange(size, dtype=jnp.int32)[None]
    last = length_B[:, None] - 1
    return last - (last - place) % size


def visible(size: int, length_B: Int[Array, "B"], window: int | None) -> Bool[Array, "B S"]:
    """Which places the last token of each row sees (its own among them)."""
    held_BS = held_positions(size, length_B)
    seen_BS = held_BS >= 0
    return seen_BS if window is None else seen_BS & (held_BS > length_B[:, None] - 1 - window)


def attend(
    q_BNH: Float[Array, "B N H"],
    layer: LayerCache,
    visible_BS: Bool[Array, "B S"],
    *,
    scale: float,
    softcap: float | None,
) -> Float[Array, "B N H"]:
    """One query for each row on what its cache holds; scores and softmax in float32."""
    num_kv_heads = layer.k_BKSH.shape[1]
    q_BKGH = q_BNH.reshape(q_BNH.shape[0], num_kv_heads, -1, q_BNH.shape[-1])
    score_BKGS = jnp.einsum(
        "BKGH,BKSH->BKGS", q_BKGH, layer.k_BKSH, preferred_element_type=jnp.float32
    )
    score_BKGS = score_BKGS * scale
    if softcap is not None:
        score_BKGS = softcap * jnp.tanh(score_BKGS / softcap)
    score_BKGS = jnp.where(visible_BS[:, None, None, :], score_BKGS, -jnp.inf)
    weight_BKGS = jax.nn.softmax(score_BKGS, axis=-1).astype(q_BNH.dtype)
    out_BKGH = jnp.einsum("BKGS,BKSH->BKGH", weight_BKGS, layer.v_BKSH)
    return out_BKGH.reshape(q_BNH.shape)
