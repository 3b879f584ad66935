"""Against ml_dtypes' casts and float64 arithmetic."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jaxtrain.precision import quantize
from jaxtrain.precision.quantize import E2M1, E4M3, E5M2

FORMATS = {
    E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2,
    E2M1: ml_dtypes.float4_e2m1fn,
}
#: Normal float32 numbers and 0: XLA flushes subnormal ones on some backends.
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
TENSORS = arrays.arrays(np.float32, (3, 8), elements=FLOATS)


def finite_values(dtype) -> np.ndarray:
    """Every finite value of a format, in order."""
    num_bits = ml_dtypes.finfo(dtype).bits
    values = np.arange(2**num_bits, dtype=np.uint8).view(dtype).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("wide", [jnp.float32, jnp.bfloat16], ids=lambda dtype: dtype.__name__)
def test_cast_rounds_to_nearest_even_and_saturates(dtype, wide):
    """At each value, in the middle of each two, on both sides of the middle, and far outside."""
    reference = FORMATS[dtype]
    values = finite_values(reference).astype(np.float32)
    middles = (values[1:] + values[:-1]) / 2
    around = [np.nextafter(middles, np.float32(sign * np.inf)) for sign in (1, -1)]
    far = np.float32([-1e30, 1e30, values[-1] * 1.3, np.inf, -np.inf])
    x = np.concatenate([values, middles, *around, far])
    x = np.asarray(jnp.asarray(x).astype(wide), np.float32)
    expected = np.clip(x, values[0], values[-1]).astype(reference)
    actual = jax.jit(lambda x: quantize.cast(x, dtype))(jnp.asarray(x, wide))
    np.testing.assert_array_equal(
        np.asarray(actual).astype(np.float32), expected.astype(np.float32)
    )


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_cast_keeps_nan(dtype):
    assert np.isnan(np.asarray(quantize.cast(jnp.float32([jnp.nan]), dtype)).astype(np.float32))


NUM_DRAWS = 4096


def drawn(rounded, x) -> np.ndarray:
    """`rounded(x, rng)` with many keys, [draw, …] in float64."""
    rngs = jax.random.split(jax.random.key(0), NUM_DRAWS)
    found = jax.jit(jax.vmap(rounded, in_axes=(None, 0)))(jnp.asarray(x), rngs)
    return np.asarray(found, np.float64)


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda dtype: dtype.__name__)
def test_stochastic_cast_gives_both_neighbours_and_is_right_on_average(dtype):
    """Within 5 standard errors of step · sqrt(p (1 − p)); subnormal numbers are among them."""
    values = finite_values(FORMATS[dtype])
    share = np.array([0.0, 2.0**-7, 0.25, 0.5, 0.8125])
    below, step = values[:-1, None], np.diff(values)[:, None]
    x = (below + share * step).astype(np.float32)
    found = drawn(lambda x, rng: quantize.cast(x, dtype, rng).astype(jnp.float32), x)
    assert ((found == below) | ((found == below + step) & (share > 0))).all()
    assert (found[:, :, 3] == below[:, 0]).any(axis=0).all()
    assert (found[:, :, 3] != below[:, 0]).any(axis=0).all()
    error = np.abs(found.mean(axis=0) - x)
    assert (error <= 5 * step * np.sqrt(share * (1 - share) / NUM_DRAWS)).all()


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda dtype: dtype.__name__)
def test_stochastic_cast_keeps_what_is_on_the_grid_saturates_and_keeps_nan(dtype):
    values = finite_values(FORMATS[dtype]).astype(np.float32)
    limit = values[-1]
    far = np.float32([limit * 1.01, -limit * 1.3, 1e30, np.inf, -np.inf])
    x = jnp.asarray(np.concatenate([values, far]))
    cast = jax.jit(quantize.cast, static_argnums=1)
    for seed in range(3):
        found = cast(x, dtype, jax.random.key(seed))
        np.testing.assert_array_equal(
            np.asarray(found).astype(np.float32), np.clip(np.asarray(x), -limit, limit)
        )
    if dtype != E2M1:  # which has none
        nan = quantize.cast(jnp.float32([np.nan]), dtype, jax.random.key(0))
        assert np.isnan(np.asarray(nan).astype(np.float32))


def test_stochastic_cast_repeats_with_its_key_and_differs_without():
    x = jnp.linspace(0.1, 5.9, 64)
    one, same, other = (
        np.asarray(quantize.cast(x, E2M1, jax.random.key(seed))).astype(np.float32)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def mxfp8_values(x, rng):
    scaled = quantize.mxfp8(x, rng=rng)
    return scaled.values, jnp.repeat(scaled.scale.astype(jnp.float32), 32, axis=1)


def nvfp4_values(x, rng):
    scaled, scale = quantize.nvfp4(x, rng)
    return scaled.values, jnp.repeat(scaled.scale.astype(jnp.float32), 16, axis=1) * scale


@pytest.mark.parametrize(
    ("quantised", "dtype"), [(mxfp8_values, E4M3), (nvfp4_values, E2M1)], ids=["mxfp8", "nvfp4"]
)
def test_stochastic_tiles_are_right_on_average_the_largest_of_each_too(quantised, dtype):
    """A scale of 16 values in E4M3, rounded to nearest, would cut half of the largest short."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 64)) * 2.0 ** rng.integers(-6, 6, (8, 64))
    x[0, 16:32] = 1e-7 * np.abs(x).max() * rng.normal(size=16)  # under NVFP4's smallest scale
    x = x.astype(np.float32)

    def both(x, rng):
        values, unit = quantised(x, rng)
        return jnp.stack([values.astype(jnp.float32), unit])

    found = drawn(both, x)
    values, unit = found[:, 0], found[0, 1]
    assert (found[:, 1] == unit).all()
    exact = x / unit
    grid = finite_values(FORMATS[dtype])
    assert np.abs(exact).max() <= grid[-1] * (1 + 1e-6)
    index = np.clip(np.searchsorted(grid, exact, side="right") - 1, 0, len(grid) - 2)
    step = grid[index + 1] - grid[index]
    share = np.clip((exact - grid[index]) / step, 0, 1)
    # 5 standard errors; and a few draws of what is too rare for their number to be near normal.
    bound = 5 * np.sqrt(share * (1 - share) / NUM_DRAWS) + 5 / NUM_DRAWS
    assert (np.abs(values.mean(axis=0) - exact) <= bound * step).all()


@given(TENSORS)
def test_scale_is_the_smallest_power_of_two_that_does_not_saturate(x):
    for dtype in (E4M3, E5M2, E2M1):
        amax, limit = np.abs(x).max(), quantize.largest(dtype)
        scale = float(quantize.scale_for(jnp.asarray(amax), dtype))
        assert np.frexp(scale)[0] == 0.5
        assert float(amax) <= limit * scale
        if amax > limit * 2.0**-125:  # below: the smallest power that is no subnormal number
            assert float(amax) > limit * scale / 2
        if amax == 0:
            assert scale == 1


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_values_that_are_not_finite_make_the_whole_nan(bad):
    x = jnp.ones((2, 32)).at[1, 3].set(bad)
    for scaled in (quantize.per_tensor(x, E4M3), quantize.per_tensor(x, E5M2)):
        assert np.isnan(quantize.dequantize(scaled)).all()
    scaled = quantize.by_blocks(x, (1, 16), E4M3)
    is_nan = np.isnan(quantize.dequantize(scaled, (1, 16)))
    assert is_nan[1, :16].all()
    assert is_nan.sum() == 16
    assert np.isnan(quantize.dequantize(quantize.mxfp8(x), (1, 32))[1]).all()
    scaled, scale = quantize.nvfp4(x)
    assert np.isnan(quantize.dequantize(scaled, (1, 16))[1, :16]).all()
    assert np.isnan(scale)


@given(TENSORS)
def test_per_tensor_is_the_reference_cast_of_the_scaled_values(x):
    for dtype in (E4M3, E5M2):
        values, scale = quantize.per_tensor(jnp.asarray(x), dtype)
        expected = (x.astype(np.float64) / float(scale)).astype(np.float32).astype(FORMATS[dtype])
        actual = np.asarray(values).astype(np.float32)
        # Quotients below float32's normal numbers round to 0 in either format.
        np.testing.assert_array_equal(actual, expected.astype(np.float32))


@pytest.mark.parametrize("block", [(1, 4), (4, 1), (4, 4), (2, 8), (16, 16)])
@given(x=arrays.arrays(np.float32, (5, 13), elements=st.floats(-1e6, 1e6, width=32)))
def test_blocks_are_quantised_each_for_itself_also_at_the_edges(block, x):
    scaled = quantize.by_blocks(jnp.asarray(x), block, E4M3)
    values, scale = (np.asarray(each).astype(np.float64) for each in scaled)
    dequantized = np.asarray(quantize.dequantize(scaled, block))
    for row in range(0, x.shape[0], block[0]):
        for column in range(0, x.shape[1], block[1]):
            inside = np.s_[row : row + block[0], column : column + block[1]]
            of_block = scale[row // block[0], column // block[1]]
            amax = float(np.abs(x[inside]).max())
            # x ≤ 448 · 2^e, e the smallest such.
            expected = 2.0 ** np.ceil(np.log2(amax / 448)) if amax > 448 * 2.0**-126 else of_block
            assert of_block == expected
            cast = (x[inside] / of_block).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
            np.testing.assert_array_equal(values[inside], cast.astype(np.float64))
            np.testing.assert_array_equal(dequantized[inside], values[inside] * of_block)


@given(arrays.arrays(np.float32, (3, 72), elements=st.floats(-1e4, 1e4, width=32)))
def test_mxfp8_error_is_half_a_step_of_its_block(x):
    scaled = quantize.mxfp8(jnp.asarray(x))
    assert scaled.scale.dtype == quantize.E8M0
    assert scaled.scale.shape == (3, 3)
    error = np.abs(np.asarray(quantize.dequantize(scaled, (1, 32)), np.float64) - x)
    scale = np.repeat(np.asarray(scaled.scale).astype(np.float64), 32, axis=1)[:, :72]
    # Half of the spacing of E4M3: 2^-4 of the value, at least half the smallest subnormal 2^-9.
    assert (error <= np.maximum(np.abs(x) * 2.0**-4, scale * 2.0**-10)).all()


def test_nvfp4_follows_its_definition():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(4, 40)) * 2.0 ** rng.integers(-12, 12, (4, 40))).astype(np.float32)
    x[0, :16] = 0
    scaled, global_scale = quantize.nvfp4(jnp.asarray(x))
    assert float(global_scale) == np.abs(x).max() / np.float32(6 * 448)
    for row in range(4):
        for column in range(0, 40, 16):
            part = x[row, column : column + 16]
            scale = np.abs(part).max() / np.float32(6) / np.float32(global_scale)
            scale = min(scale, np.float32(448)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
            unit = scale * np.float32(global_scale)
            expected = np.clip(part / unit if unit else part * 0, -6, 6).astype(
                ml_dtypes.float4_e2m1fn
            )
            assert float(scaled.scale[row, column // 16]) == scale
            np.testing.assert_array_equal(
                np.asarray(scaled.values)[row, column : column + 16].astype(np.float32),
                expected.astype(np.float32),
            )


@pytest.mark.parametrize(
    "quantised",
    [
        lambda x: quantize.dequantize(quantize.per_tensor(x, E4M3)),
        lambda x: quantize.dequantize(quantize.by_blocks(x, (1, 16), E5M2), (1, 16)),
        lambda x: quantize.dequantize(quantize.mxfp8(x), (1, 32)),
        lambda x: quantize.dequantize(quantize.nvfp4(x)[0], (1, 16)),
    ],
)
def test_zeros_stay_zeros(quantised):
    np.testing.assert_array_equal(quantised(jnp.zeros((3, 40))), np.zeros((3, 40)))
