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
