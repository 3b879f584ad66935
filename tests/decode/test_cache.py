"""What places hold and which are seen, against a list of positions; attention against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.decode import cache as cache_lib
from jaxtrain.models.config import ModelConfig

CONFIG = ModelConfig(
    vocab_size=11, num_layers=3, d_model=8, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=8,
    window=3, global_every=3,
)  # fmt: skip


def test_a_windowed_layer_is_a_ring_as_wide_as_its_window():
    cache = cache_lib.make_cache(CONFIG, 2, 10, jnp.dtype(jnp.float32))
    assert [layer.k_BKSH.shape for layer in cache] == [(2, 1, 3, 4), (2, 1, 3, 4), (2, 1, 10, 4)]
    short = cache_lib.make_cache(CONFIG, 2, 2, jnp.dtype(jnp.bfloat16))
    assert {(layer.v_BKSH.shape[2], layer.v_BKSH.dtype.name) for layer in short} == {
        (2, "bfloat16")
    }


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


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (3, None), (None, 2.0)])
def test_attention_equals_numpy_over_the_visible_tokens(window, softcap):
    rng = np.random.default_rng(0)
    size, lengths = 6, [1, 4, 6]
    keys, values = rng.normal(size=(2, 3, 2, size, 4)).astype(np.float32)
    queries = rng.normal(size=(3, 4, 4)).astype(np.float32)
    visible = cache_lib.visible(size, jnp.array(lengths, jnp.int32), window)
    layer = cache_lib.LayerCache(jnp.asarray(keys), jnp.asarray(values))
    found = cache_lib.attend(jnp.asarray(queries), layer, visible, scale=0.3, softcap=softcap)
    for row, length in enumerate(lengths):
        first = 0 if window is None else max(0, length - window)
        for head in range(4):
            kv = head // 2
            score = 0.3 * keys[row, kv, first:length].astype(np.float64) @ queries[row, head]
            score = score if softcap is None else softcap * np.tanh(score / softcap)
            weight = np.exp(score - score.max())
            expected = weight / weight.sum() @ values[row, kv, first:length]
            np.testing.assert_allclose(found[row, head], expected, atol=1e-5)


def test_values_of_an_earlier_request_are_not_seen():
    layer = cache_lib.LayerCache(jnp.full((1, 1, 4, 2), 99.0), jnp.full((1, 1, 4, 2), 99.0))
    fresh = jnp.array([[[[1.0, 2.0]]]])
    row, length = jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32)
    layer = cache_lib.LayerCache(
        *(cache_lib.write(entry, fresh, row, row[None], length) for entry in layer)
    )
    out = cache_lib.attend(
        jnp.ones((1, 1, 2)), layer, cache_lib.visible(4, length, None), scale=1.0, softcap=None
    )
    np.testing.assert_array_equal(out[0, 0], [1, 2])
