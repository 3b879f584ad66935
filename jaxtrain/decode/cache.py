"""The cache: what each layer keeps of the tokens so far, in arrays of fixed size.

Each row of the batch is a slot that one request holds. A layer without a window has a place for
every position up to the engine's limit; a layer with one is a ring of as many places as the window
is wide, in which position p lies at p mod size. Which position a place holds follows from the
number of tokens alone, so that nothing else is stored and nothing stale can be read: a place counts
only if the position it must hold is one the row has written.

What is kept of a token are the entries of the attention layer (`models.gqa.Attention.heads`): keys
and values, or one latent; the layer also knows how to attend to them.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from jaxtrain.types import Array

LayerCache = tuple[Float[Array, "B _ S _"], ...]  #: one array for each entry of the layer
Cache = tuple[LayerCache, ...]  #: one for each layer


def make_cache(
    windows: Sequence[int | None],
    entries: Sequence[tuple[int, int]],
    num_slots: int,
    max_len: int,
    dtype: jnp.dtype,
    num_ahead: int = 0,
) -> Cache:
    """An empty cache for requests of up to `max_len` tokens, prompt and answer together.

    Args:
      windows: of each layer, in tokens; None: it sees the whole text.
      entries: heads and head size of each entry of a layer.
      num_ahead: tokens that may be written and taken back: so many places more, so that what a
        token of a row still sees is not overwritten by those.
    """

    def layer(window: int | None) -> LayerCache:
        size = max_len if window is None else min(window, max_len)
        return tuple(jnp.zeros((num_slots, k, size + num_ahead, h), dtype) for k, h in entries)

    return tuple(layer(window) for window in windows)


def write(
    entry_BKSH: Float[Array, "B K S H"],
    new_PTKH: Float[Array, "P T K H"],
    slot_P: Int[Array, "P"],
    positions_PT: Int[Array, "P T"],
    length_P: Int[Array, "P"],
) -> Float[Array, "B K S H"]:
    """The entry with row p's tokens at their positions in slot `slot_P[p]`.

    Positions from `length_P` on are filler, and below 0 there are none: neither is written. Of more
    tokens than a ring holds, the last ones stay.
    """
    size = entry_BKSH.shape[2]
    first_P1 = jnp.maximum(length_P[:, None] - size, 0)
    kept = (positions_PT >= first_P1) & (positions_PT < length_P[:, None])
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
