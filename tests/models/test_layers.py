import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.models import layers
from jaxtrain.models.config import ModelConfig
from jaxtrain.precision.recipe import get_recipe

FLOAT32, BFLOAT16 = get_recipe("float32"), get_recipe("bfloat16")
CONFIG = ModelConfig(
    vocab_size=64, num_layers=8, d_model=64, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=96
)


def unconstrained(x, letters):
    return x


def test_norm_divides_by_the_root_mean_square_and_scales():
    norm = layers.RMSNorm(64, 1e-5, "D")
    norm.scale[...] = jnp.linspace(-1, 2, 64)
    x = np.random.default_rng(0).standard_normal((2, 3, 64)) * 5
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * np.linspace(-1, 2, 64)
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, atol=2e-6)


def test_norm_over_several_dimensions_with_an_offset():
    norm = layers.RMSNorm((4, 16), 1e-5, "NH", offset=True)
    rng = np.random.default_rng(0)
    x, scale = rng.standard_normal((2, 3, 4, 16)) * 5, rng.standard_normal((4, 16))
    np.testing.assert_array_equal(norm.scale[...], 0)  # so that it starts as the identity
    norm.scale[...] = jnp.asarray(scale, jnp.float32)
    expected = x / np.sqrt((x**2).mean((-2, -1), keepdims=True) + 1e-5) * (1 + scale)
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, atol=4e-6)


def test_norm_of_bfloat16_is_computed_in_float32():
    """256² = 65536 more than bfloat16 resolves beside 1: a bfloat16 mean would round it away."""
    norm = layers.RMSNorm(1024, 1e-5, "D")
    x = jnp.ones((1024,), jnp.bfloat16).at[0].set(256)
    exact = np.asarray(x, np.float64) / math.sqrt((65536 + 1023) / 1024)
    assert norm(x).dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(norm(x), np.float64), exact, rtol=2**-8)


def test_layer_norm_takes_the_mean_away_and_adds_a_bias():
    norm = layers.LayerNorm(16, 1e-3, "D")
    rng = np.random.default_rng(0)
    x, scale, bias = rng.standard_normal((2, 3, 16)) * 5 + 2, *rng.standard_normal((2, 16))
    norm.scale[...], norm.bias[...] = (jnp.asarray(p, jnp.float32) for p in (scale, bias))
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    found = norm(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, expected * scale + bias, atol=2e-6)


def test_project_contracts_trailing_with_leading_dimensions():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((4, 5, 6))
    x32, w32 = jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)
    out = layers.project(FLOAT32, x32, w32, num_contracted=2)
    np.testing.assert_allclose(out, np.einsum("btnh,nhd->btd", x, w), atol=1e-5)
    assert layers.project(BFLOAT16, x32, w32, num_contracted=2).dtype == jnp.bfloat16


def test_weights_have_the_stated_spread():
    """Cut at two standard deviations of the uncut normal, so that none lies further out."""
    rngs = nnx.Rngs(0)
    for gain in (1.0, 0.25):
        drawn = np.asarray(layers.weight(rngs, (100, 20, 10), "DNH", fan_in=100, gain=gain)[...])
        assert drawn.std() == pytest.approx(gain / 10, rel=0.02)
        assert abs(drawn.mean()) < 0.01 * gain
        assert np.abs(drawn).max() <= 2 * gain / 10 / 0.8796 + 1e-6


def test_dropout_keeps_the_mean_and_zeroes_the_stated_share():
    x = jnp.ones((100, 100))
    dropped = layers.dropout(x, 0.25, jax.random.key(0))
    assert float(jnp.mean(dropped == 0)) == pytest.approx(0.25, abs=0.02)
    np.testing.assert_allclose(np.unique(dropped), [0, 4 / 3], rtol=1e-6)
    assert layers.dropout(x, 0.25, None) is x
    assert layers.dropout(x, 0.0, jax.random.key(0)) is x
