"""What places hold and which are seen, against a list of positions."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.decode import cache as cache_lib
from jaxtrain.models.attention import attend_cached


def test_a_windowed_layer_is_a_ring_as_wide_as_its_window():
    entries = [(1, 4), (2, 6)]
    cache = cache_lib.make_cache([3, 3, None], entries, 2, 10, jnp.dtype(jnp.float32))
    assert [layer[0].shape for layer in cache] == [(2, 1, 3, 4), (2, 1, 3, 4), (2, 1, 10, 4)]
    assert [layer[1].shape for layer in cache] == [(2, 2, 3, 6), (2, 2, 3, 6), (2, 2, 10, 6)]
    short = cache_lib.make_cache([3, 3, None], entries, 2, 2, jnp.dtype(jnp.bfloat16))
    assert {(layer[1].shape[2], layer[1].dtype.name) for layer in short} == {(2, "bfloat16")}


@given(st.integers(1, 6), st.integers(0, 20))
def test_places_hold_the_last_positions_written(size, length):
    held = {place: -1 for place in range(size)}
    for position in range(length):
        held[position % size] = position
    found = np.asarray(cache_lib.held_positions(size, jnp.array([length], jnp.int32)))[0]
    assert [max(position, -1) for position in found.tolist()] == list(held.values())


def test_write_puts_each_row_into_its_slot_and_drops_filler():
    new = jnp.arange(1, 11, dtype=jnp.float32).reshape(2, 5, 1, 1)
    positions = jnp.broadcast_to(jnp.arange(5, dtype=jnp.int32)[None], (2, 5))
    entry = cache_lib.write(
        jnp.zeros((3, 1, 3, 1)),
        new,
        jnp.array([2, 0], jnp.int32),
        positions,
        jnp.array([5, 2], jnp.int32),
    )
    # Slot 2: positions 2, 3, 4 of five at places 2, 0, 1. Slot 0: two tokens. Slot 1: nothing.
    np.testing.assert_array_equal(entry[:, 0, :, 0], [[6, 7, 0], [0, 0, 0], [4, 5, 3]])


def test_write_out_of_range_changes_nothing():
    entry = jnp.ones((2, 1, 3, 1))
    row = jnp.array([2], jnp.int32)
    new = cache_lib.write(entry, jnp.zeros((1, 1, 1, 1)), row, row[None] * 0, row)
    np.testing.assert_array_equal(new, entry)


def test_values_of_an_earlier_request_are_not_seen():
    stale = jnp.full((1, 1, 4, 2), 99.0)
    fresh = jnp.array([[[[1.0, 2.0]]]])
    row, length = jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32)
    held = cache_lib.write(stale, fresh, row, row[None], length)
    seen = cache_lib.visible(4, length, None)
    out = attend_cached(jnp.ones((1, 1, 2)), held, held, seen, scale=1.0, softcap=None)
    np.testing.assert_array_equal(out[0, 0], [1, 2])
