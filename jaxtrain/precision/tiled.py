"""Products of activations and weights with a scale for each tile: FP8 blocks, MXFP8, NVFP4.

    y  = x · w        dx = g · wᵀ        dw = xᵀ · g

Every operand is quantised along the dimension that its product sums over, so x, w and g are each
quantised twice, in other directions; but weights of `fp8_block` have square blocks, which serve
both. `fp8_block` (DeepSeek-V3, arXiv 2412.19437, section 3.3.2) has E5M2 gradients here, where
DeepSeek-V3 has E4M3; MXFP8 (arXiv 2506.08027) and NVFP4 have the values of weights in gradients
too. NVFP4 is without the random Hadamard transform and the stochastic rounding of arXiv 2509.25149.

MXFP8 and NVFP4 are Blackwell's (`jax.nn.scaled_matmul`, cuDNN's block-scaled product). Elsewhere,
and for `fp8_block`, which no library that XLA calls has, the product is emulated: values times the
scales of their tiles are float32 numbers without rounding, so a float32 matmul gives the same.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain.precision import quantize
from jaxtrain.precision.quantize import E2M1, E4M3, E5M2, Scaled


class Tiles(NamedTuple):
    """A format with a scale for each tile."""

    size: int  #: elements of a tile, along the dimension that is summed over
    weight_rows: int  #: along the other one, of weights
    dtype: type  #: of activations and weights
    gradient_dtype: type
    has_matmul: bool  #: whether `jax.nn.scaled_matmul` does it on some GPU


FORMATS = {
    "fp8_block": Tiles(quantize.BLOCK, quantize.BLOCK, E4M3, E5M2, has_matmul=False),
    "mxfp8": Tiles(quantize.MX_BLOCK, 1, E4M3, E4M3, has_matmul=True),
    "nvfp4": Tiles(quantize.NV_BLOCK, 1, E2M1, E2M1, has_matmul=True),
}


class Spec(NamedTuple):
    """What is compiled in."""

    format: str
    num_contracted: int
    emulate: bool
    name: str


class _Operand(NamedTuple):
    """[rows, terms] quantised along its terms."""

    scaled: Scaled
    block: tuple[int, int]
    scale: jax.Array | None  # of the whole; None: 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(spec: Spec, x: jax.Array, w: jax.Array) -> jax.Array:
    """Contracts the last dimensions of x with the first of w; in the dtype of x."""
    return _forward(spec, x, w)[0]


def _forward(spec: Spec, x, w):
    tiles = FORMATS[spec.format]
    inputs = math.prod(w.shape[: spec.num_contracted])
    outputs = w.shape[spec.num_contracted :]
    x_MK, w_KN = x.reshape(-1, inputs), w.reshape(inputs, -1)
    with jax.named_scope(f"{spec.name}:output"):
        of_x = _in_tiles(tiles, x_MK, tiles.dtype)
        y_MN = _matmul(spec, of_x, _in_tiles(tiles, w_KN.T, tiles.dtype, tiles.weight_rows))
    y_MN = y_MN.astype(x.dtype)
    return y_MN.reshape(*x.shape[: x.ndim - spec.num_contracted], *outputs), (x, w)


def _backward(spec: Spec, residuals, g):
    x, w = residuals
    tiles = FORMATS[spec.format]
    inputs = math.prod(w.shape[: spec.num_contracted])
    x_MK, w_KN = x.reshape(-1, inputs), w.reshape(inputs, -1)
    g_MN = g.reshape(x_MK.shape[0], -1)
    with jax.named_scope(f"{spec.name}:d_input"):
        of_g = _in_tiles(tiles, g_MN, tiles.gradient_dtype)
        d_x = _matmul(spec, of_g, _in_tiles(tiles, w_KN, tiles.dtype, tiles.weight_rows))
    with jax.named_scope(f"{spec.name}:d_weight"):
        of_g = _in_tiles(tiles, g_MN.T, tiles.gradient_dtype)
        d_w = _matmul(spec, _in_tiles(tiles, x_MK.T, tiles.dtype), of_g)
    return d_x.astype(x.dtype).reshape(x.shape), d_w.astype(w.dtype).reshape(w.shape)


product.defvjp(_forward, _backward)


def _in_tiles(tiles: Tiles, a: jax.Array, dtype: type, rows: int = 1) -> _Operand:
    """[rows, terms] quantised; a tile has `rows` of its rows."""
    a = jnp.pad(a, ((0, 0), (0, -a.shape[1] % tiles.size)))  # terms of 0 up to a whole tile
    block = (rows, tiles.size)
    if dtype == E2M1:
        scaled, scale = quantize.nvfp4(a)
        return _Operand(scaled, block, scale)
    if tiles.has_matmul:
        return _Operand(quantize.mxfp8(a, dtype), block, None)
    return _Operand(quantize.by_blocks(a, block, dtype), block, None)


def _matmul(spec: Spec, a: _Operand, b: _Operand) -> jax.Array:
    """Σ_k a[m, k] · b[n, k] in float32."""
    if spec.emulate:
        wide_a, wide_b = (quantize.dequantize(each.scaled, each.block) for each in (a, b))
        over_terms = (((1,), (1,)), ((), ()))
        y = lax.dot_general(wide_a, wide_b, over_terms, precision=lax.Precision.HIGHEST)
    else:
        values_a, scale_a, values_b, scale_b = (x[None] for each in (a, b) for x in each.scaled)
        y = jax.nn.scaled_matmul(
            values_a, values_b, scale_a, scale_b, preferred_element_type=jnp.float32
        )[0]
    for each in (a, b):
        y = y if each.scale is None else y * each.scale
    return y
