"""Attention on a cache is that on the whole text, however its tokens come."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.decode.attention import on_cache, on_prompt
from jaxtrain.decode.cache import make_cache
from jaxtrain.models import rope
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.gqa import GroupedQueryAttention
from jaxtrain.precision.recipe import get_recipe
from tests.models.filled import filled, quick

CONFIG = ModelConfig(
    vocab_size=9, num_layers=1, d_model=12, num_heads=2, num_kv_heads=1, head_dim=6, d_ff=8,
    attention_block=4,
)  # fmt: skip
X_BTD = jax.random.normal(jax.random.key(0), (2, 8, 12))
ROWS = jnp.arange(2, dtype=jnp.int32)


@pytest.fixture(scope="module")
def attention():
    recipe = get_recipe("float32")
    return filled(
        lambda: GroupedQueryAttention(
            CONFIG, rngs=nnx.Rngs(0), recipe=recipe, constrain=lambda x, letters: x
        )
    )


def places(start, stop):
    return jnp.broadcast_to(jnp.arange(start, stop, dtype=jnp.int32)[None], (2, stop - start))


def on(attention, held, start, stop, x_BTD=X_BTD, rows=ROWS, window=None):
    at = places(start, stop)
    by = rope.rotations(CONFIG, at).full
    x_BTD = x_BTD[:, max(start, 0) : max(start, 0) + stop - start]

    @quick
    def run(x_BTD, held):
        return on_cache(attention, x_BTD, by, held, rows, at, window=window)

    return run(x_BTD, held)


def empty(window=None):
    dtype = jnp.dtype(jnp.float32)
    return make_cache([window], [(1, 6), (1, 6)], 2, 8, dtype, 3)[0]


@pytest.mark.parametrize("window", [None, 3])
def test_pieces_of_a_text_give_what_the_whole_text_gives(attention, window):
    by = rope.rotations(CONFIG, places(0, 8)).full

    @quick
    def whole(x_BTD):
        return on_prompt(attention, x_BTD, by, window=window, implementation="chunked")[0]

    want = whole(X_BTD)
    held, found = empty(window), []
    for start, stop in ((0, 3), (3, 4), (4, 8)):
        out, held = on(attention, held, start, stop, window=window)
        found.append(out)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), want, atol=1e-5)


def test_tokens_taken_back_leave_nothing_that_is_seen(attention):
    _, held = on(attention, empty(), 0, 3)
    _, wrong = on(attention, held, 3, 7, x_BTD=X_BTD + 5)
    one, other = (on(attention, each, 3, 5)[0] for each in (held, wrong))
    np.testing.assert_array_equal(one, other)


def test_places_below_0_and_rows_at_rest_are_not_written(attention):
    out, held = on(attention, empty(), -2, 1, rows=jnp.array([0, 2], jnp.int32))
    for entry_BKSH in held:
        assert np.all(np.asarray(entry_BKSH[0, 0, 0]) != 0)
        assert not np.any(entry_BKSH[0, 0, 1:])
        assert not np.any(entry_BKSH[1])
    assert np.isfinite(out).all()
