"""Against float64 products of operands that are quantised tile by tile."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.precision import quantize, tiled
from jaxtrain.precision.quantize import E4M3, E5M2

SHAPES = [((3, 50, 160), (160, 96), 1), ((3, 50, 5, 32), (5, 32, 96), 2)]


def operands(x_shape, w_shape, num_contracted):
    rng = np.random.default_rng(0)
    out_shape = (*x_shape[: len(x_shape) - num_contracted], *w_shape[num_contracted:])
    spread = 2.0 ** rng.integers(-6, 6, x_shape)  # scales of tiles differ
    arrays = (rng.normal(size=x_shape) * spread, rng.normal(size=w_shape) / 10)
    return tuple(jnp.asarray(a, jnp.bfloat16) for a in (*arrays, rng.normal(size=out_shape) / 1000))


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def quantised(name, a, is_weight, dtype):
    """[rows, terms] in float32, the last tile cut off at the edge."""
    if name == "fp8_block":
        block = (128, 128) if is_weight else (1, 128)
        found = quantize.dequantize(quantize.by_blocks(a, block, dtype), block)
    elif name == "mxfp8":
        found = quantize.dequantize(quantize.mxfp8(a), (1, 32))
    else:
        scaled, scale = quantize.nvfp4(a)
        found = quantize.dequantize(scaled, (1, 16)) * scale
    return found


@pytest.mark.parametrize(
    ("name", "x_shape", "w_shape", "num_contracted"),
    [*((name, *SHAPES[0]) for name in tiled.FORMATS), ("fp8_block", *SHAPES[1])],
)
def test_output_and_gradients_are_products_of_tiled_operands(
    name, x_shape, w_shape, num_contracted
):
    x, w, g = operands(x_shape, w_shape, num_contracted)
    spec = tiled.Spec(name, num_contracted, emulate=True, grad_reduce_dtype=jnp.float32, name="w")

    @jax.jit
    def all_three(x, w, g):
        y, pull = jax.vjp(lambda x, w: tiled.product(spec, x, w), x, w)
        return y, *pull(g)

    y, d_x, d_w = all_three(x, w, g)
    assert (y.shape, d_x.shape, d_w.shape) == (g.shape, x.shape, w.shape)
    x_MK, w_KN, g_MN = x.reshape(150, 160), w.reshape(160, 96), g.reshape(150, 96)
    of_gradient = E5M2 if name == "fp8_block" else E4M3

    def tiles(a, is_weight=False, dtype=E4M3):
        return np.asarray(quantised(name, a, is_weight, dtype), np.float64)

    for actual, a, b in (
        (y, tiles(x_MK), tiles(w_KN.T, True)),
        (d_x, tiles(g_MN, dtype=of_gradient), tiles(w_KN, True)),
        (d_w, tiles(x_MK.T), tiles(g_MN.T, dtype=of_gradient)),
    ):
        expected = a @ b.T
        error = np.abs(np.asarray(actual, np.float64).reshape(expected.shape) - expected)
        # Rounded to bfloat16 once (2^-8), and sums in float32.
        assert (error <= np.abs(expected) * 2.0**-8 + np.abs(expected).max() * 1e-5).all()


@pytest.mark.parametrize("name", tiled.FORMATS)
def test_stochastic_rounding_is_of_gradients_alone_each_of_the_two_by_its_own(name):
    x, w, g = operands((64, 32), (32, 64), 1)
    spec = tiled.Spec(name, 1, emulate=True, grad_reduce_dtype=jnp.float32, name="w")

    @jax.jit
    def all_three(rng):
        y, pull = jax.vjp(lambda x, w: tiled.product(spec, x, w, rng), x, w)
        return y, *pull(g)

    nearest, *drawn = (
        [np.asarray(each, np.float64) for each in all_three(rng)]
        for rng in (None, jax.random.key(0), jax.random.key(0), jax.random.key(1))
    )
    for found in drawn:
        np.testing.assert_array_equal(found[0], nearest[0])
    for number in (1, 2):
        np.testing.assert_array_equal(drawn[0][number], drawn[1][number])
        assert (drawn[0][number] != drawn[2][number]).any()
        assert (drawn[0][number] != nearest[number]).any()


def test_the_two_castings_of_a_gradient_draw_apart():
    """Identities multiply, rows and columns have the same largest: both give the cast alone."""
    unit = jnp.eye(128)
    g = np.random.default_rng(0).uniform(1, 1.9, (128, 128)).astype(np.float32)
    np.fill_diagonal(g, 1.9)
    spec = tiled.Spec("fp8_block", 1, emulate=True, grad_reduce_dtype=jnp.float32, name="w")
    _, pull = jax.vjp(lambda x, w: tiled.product(spec, x, w, jax.random.key(0)), unit, unit)
    d_x, d_w = pull(jnp.asarray(g))
    grid = (1.0, 1.25, 1.5, 1.75, 2.0)  # of E5M2
    assert np.isin(d_x, grid).all()
    assert np.isin(d_w, grid).all()
    # Where p rounds up, two draws differ with 2 p (1 - p): a third of the time over [0, 1).
    assert np.mean(d_x != d_w) == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize(("name", "bound"), [("fp8_block", 0.05), ("mxfp8", 0.05), ("nvfp4", 0.2)])
def test_output_is_as_near_as_the_bits_allow(name, bound):
    x, w, _ = operands(*SHAPES[0])
    spec = tiled.Spec(name, 1, emulate=True, grad_reduce_dtype=jnp.float32, name="w")
    exact = np.einsum("abk,kn->abn", np.asarray(x, np.float64), np.asarray(w, np.float64))
    error = np.linalg.norm(
        np.asarray(jax.jit(tiled.product, static_argnums=0)(spec, x, w), np.float64) - exact
    )
    assert 0.005 < error / np.linalg.norm(exact) < bound


def test_nan_reaches_the_output():
    x, w, _ = operands(*SHAPES[0])
    for name in tiled.FORMATS:
        spec = tiled.Spec(name, 1, emulate=True, grad_reduce_dtype=jnp.float32, name="w")
        product = jax.jit(tiled.product, static_argnums=0)
        assert np.isnan(product(spec, x.at[0, 0, 0].set(jnp.nan), w)[0, 0]).all()
