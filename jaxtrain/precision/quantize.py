"""Quantisers: float arrays as small floats with scales, x ≈ values · scale.

    per tensor   one scale                                              FP8
    by blocks    one scale for each block of a shape: 1×128 of activations, 128×128 of weights
                 (DeepSeek-V3, arXiv 2412.19437, section 3.3.2)         FP8
    mxfp8        one E8M0 scale for 32 in a row (OCP Microscaling Formats 1.0)
    nvfp4        E2M1, one E4M3 scale for 16 in a row, and one float32 scale of the tensor over
                 them (NVIDIA, arXiv 2509.25149)

Values are rounded to nearest, ties to even, and saturate: beyond the largest finite value comes
that value. Given a key they are rounded stochastically instead, to one of the two neighbours with
a probability such that the mean is the value (Gupta et al. 2015, arXiv 1502.02551).

Scales of FP8 are powers of two, rounded up: multiplying by one rounds nothing, so the whole error
is that of the values, and nothing saturates that the scale was made from.

A NaN or an infinity in the input makes the scale NaN, and with it all that the scale stands for:
the step's check for finite values sees it. The arithmetic is the same on every backend.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Key
from ml_dtypes import finfo

E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
E2M1, E8M0 = jnp.float4_e2m1fn, jnp.float8_e8m0fnu

#: Activations and weights under block scaling; elements along one side of a block.
BLOCK = 128
MX_BLOCK, NV_BLOCK = 32, 16

_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127


class Scaled(NamedTuple):
    """x ≈ values · scale, where each scale stands for one block of values.

    Dimensions of `scale` are those of `values` divided by the block's, rounded up; none at all for
    the whole tensor.
    """

    values: jax.Array
    scale: jax.Array


def largest(dtype: jnp.dtype | type) -> float:
    """The largest finite value: 448 of E4M3, 57344 of E5M2, 6 of E2M1."""
    return float(finfo(dtype).max)


def cast(
    x: Float[jax.Array, "*shape"], dtype: jnp.dtype | type, rng: Key[jax.Array, ""] | None = None
) -> jax.Array:
    """Rounded to nearest even; ±largest beyond the range; NaN stays NaN (E2M1 has none).

    Args:
      rng: key of stochastic rounding; its probabilities are multiples of 2^-24.
    """
    limit = largest(dtype)
    x = jnp.clip(x, -limit, limit)
    return (x if rng is None else _to_a_neighbour(x, dtype, rng)).astype(dtype)


def max_magnitude(x: Float[jax.Array, "*shape"]) -> Float[jax.Array, ""]:
    """max |x| in float32 ("amax"); NaN where x has one."""
    return jnp.max(jnp.abs(x)).astype(jnp.float32)


def scale_for(amax: Float[jax.Array, "*blocks"], dtype: jnp.dtype | type) -> jax.Array:
    """The smallest power of two (float32) under which `amax` does not saturate.

    1 where amax is 0, so that zeros stay zeros; NaN where amax is not finite.
    """
    mantissa, exponent = jnp.frexp(amax)
    limit_mantissa, limit_exponent = math.frexp(largest(dtype))
    exponent += jnp.where(mantissa > limit_mantissa, 1, 0) - limit_exponent
    scale = _power_of_two(jnp.maximum(exponent, 1 - _EXPONENT_BIAS))
    return jnp.where(jnp.isfinite(amax), jnp.where(amax > 0, scale, 1.0), jnp.nan)


def with_scale(
    x: Float[jax.Array, "*shape"],
    scale: Float[jax.Array, ""],
    dtype: jnp.dtype | type,
    rng: Key[jax.Array, ""] | None = None,
) -> jax.Array:
    """The values of x under one scale that is given, a power of two; `rng` as in `cast`."""
    return cast(x.astype(jnp.float32) / scale, dtype, rng)


def per_tensor(x: Float[jax.Array, "*shape"], dtype: jnp.dtype | type) -> Scaled:
    """One scale for the whole of x, from x itself."""
    scale = scale_for(max_magnitude(x), dtype)
    return Scaled(with_scale(x, scale, dtype), scale)


def by_blocks(
    x: Float[jax.Array, "*shape"],
    block: Sequence[int],
    dtype: jnp.dtype | type,
    rng: Key[jax.Array, ""] | None = None,
) -> Scaled:
    """A scale for each block; blocks at an edge are cut off there.

    Args:
      block: the size of a block along each dimension of x.
      rng: as in `cast`.
    """
    scale = scale_for(_block_max(x, block), dtype)
    return Scaled(cast(x.astype(jnp.float32) / _spread(scale, block, x.shape), dtype, rng), scale)


def mxfp8(
    x: Float[jax.Array, "*shape"],
    dtype: jnp.dtype | type = E4M3,
    rng: Key[jax.Array, ""] | None = None,
) -> Scaled:
    """E8M0 scales of 32 neighbours along the last dimension, rounded up where OCP rounds down.

    Rounded down, the largest of a block could lose an eighth to saturation (arXiv 2506.08027).
    """
    scaled = by_blocks(x, in_a_row(x.ndim, MX_BLOCK), dtype, rng)
    return Scaled(scaled.values, scaled.scale.astype(E8M0))


def nvfp4(
    x: Float[jax.Array, "*shape"], rng: Key[jax.Array, ""] | None = None
) -> tuple[Scaled, Float[jax.Array, ""]]:
    """E2M1 with E4M3 scales of 16 neighbours along the last dimension, and the tensor's own.

    x ≈ values · scale · tensor scale, the latter chosen so that the largest block has the largest
    E4M3 scale. A block whose largest is under 1 / 458,752 of the tensor's becomes zeros.

    With a key, scales are rounded up: values that saturate would not be right on average.
    """
    block = in_a_row(x.ndim, NV_BLOCK)
    of_blocks, of_tensor = _block_max(x, block), max_magnitude(x)
    global_scale = of_tensor / (largest(E2M1) * largest(E4M3))
    global_scale = jnp.where(of_tensor > 0, global_scale, 1.0)
    global_scale = jnp.where(jnp.isfinite(of_tensor), global_scale, jnp.nan)
    exact = of_blocks / largest(E2M1) / global_scale
    scale = cast(exact, E4M3) if rng is None else _rounded_up(exact, E4M3)
    unit = scale.astype(jnp.float32) * global_scale
    unit = _spread(unit, block, x.shape)
    values = jnp.where(unit > 0, x.astype(jnp.float32) / jnp.where(unit > 0, unit, 1.0), 0.0)
    return Scaled(cast(values, E2M1, rng), scale), global_scale


def dequantize(scaled: Scaled, block: Sequence[int] = ()) -> Float[jax.Array, "*shape"]:
    """values · scale in float32; `block` as it was quantised with, () for the whole tensor."""
    values, scale = scaled
    scale = _spread(scale.astype(jnp.float32), block, values.shape)
    return values.astype(jnp.float32) * scale


def in_a_row(num_dims: int, size: int, axis: int = -1) -> tuple[int, ...]:
    """The block of `size` neighbours along one dimension: (1, …, size) for the last one."""
    block = [1] * num_dims
    block[axis] = size
    return tuple(block)


def _to_a_neighbour(x: jax.Array, dtype: jnp.dtype | type, rng: jax.Array) -> jax.Array:
    """x, within the range of `dtype`, as one of its two neighbours among the numbers of `dtype`."""
    x = x.astype(jnp.float32)
    size, info = jnp.abs(x), finfo(dtype)
    exponent = (jax.lax.bitcast_convert_type(size, jnp.int32) >> _MANTISSA_BITS) - _EXPONENT_BIAS
    step = _power_of_two(jnp.maximum(exponent, info.minexp) - info.nmant)
    below = jnp.floor(size / step)
    # The top 24 bits, each number of which float32 has: uniform in [0, 1), and never under 0, so
    # that what has no fraction stays.
    uniform = (jax.random.bits(rng, x.shape, jnp.uint32) >> 8).astype(jnp.float32) * 2.0**-24
    goes_up = uniform < size / step - below
    return jnp.copysign((below + goes_up.astype(jnp.float32)) * step, x)


def _rounded_up(x: jax.Array, dtype: jnp.dtype | type) -> jax.Array:
    """The least number of `dtype` that is not less, of x ≥ 0; its largest beyond the range."""
    x = jnp.minimum(x, largest(dtype))
    nearest = cast(x, dtype)
    bits = jax.lax.bitcast_convert_type(nearest, jnp.uint8)
    is_less = nearest.astype(jnp.float32) < x
    return jax.lax.bitcast_convert_type(bits + is_less.astype(jnp.uint8), dtype)


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """2^exponent exactly, for exponents of normal numbers: `exp2` need not be exact."""
    bits = (exponent + _EXPONENT_BIAS).astype(jnp.int32) << _MANTISSA_BITS
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _block_max(x: jax.Array, block: Sequence[int]) -> jax.Array:
    """The largest magnitude of each block, in float32."""
    x = jnp.abs(x)
    for axis, size in enumerate(block):
        if size == 1:
            continue
        num_blocks = math.ceil(x.shape[axis] / size)
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, num_blocks * size - x.shape[axis])
        x = jnp.pad(x, padding)
        x = jnp.max(
            x.reshape(*x.shape[:axis], num_blocks, size, *x.shape[axis + 1 :]), axis=axis + 1
        )
    return x.astype(jnp.float32)


def _spread(scale: jax.Array, block: Sequence[int], shape: Sequence[int]) -> jax.Array:
    """Each block's scale at each of its elements."""
    for axis, size in enumerate(block):
        if size > 1:
            # Not `jnp.repeat`, a gather: on a mesh its result would travel, in float32 and whole.
            sizes = list(scale.shape)
            sizes.insert(axis + 1, size)
            scale = jnp.broadcast_to(jnp.expand_dims(scale, axis + 1), sizes)
            sizes[axis : axis + 2] = [sizes[axis] * size]
            scale = jax.lax.slice_in_dim(scale.reshape(sizes), 0, shape[axis], axis=axis)
    return scale
