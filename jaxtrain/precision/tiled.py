"""Products of activations and weights with a scale for each tile: FP8 blocks, MXFP8, NVFP4.

    y  = x · w        dx = g · wᵀ        dw = xᵀ · g

Every operand is quantised along the dimension that its product sums over, so x, w and g are each
quantised twice, in other directions; but weights of `fp8_block` have square blocks, which serve
both. `fp8_block` (DeepSeek-V3, arXiv 2412.19437, section 3.3.2) has E5M2 gradients here, where
DeepSeek-V3 has E4M3; MXFP8 (arXiv 2506.08027) and NVFP4 have the values of weights in gradients
too. NVFP4 is without the random Hadamard transform of arXiv 2509.25149; gradients may be rounded
stochastically (`quantize.cast`), each of their two castings by draws of its own.

MXFP8 and NVFP4 are Blackwell's (`jax.nn.scaled_matmul`, cuDNN's block-scaled product); `fp8_block`,
which no library that XLA calls has, is a kernel of our own (`block_product.py`). Elsewhere products
are emulated: values times the scales of their tiles are float32 numbers without rounding, so a
float32 matmul gives the same.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxtrain.precision import block_product, quantize
from jaxtrain.precision.block_product import MeshAxes, Where
from jaxtrain.precision.quantize import E2M1, E4M3, E5M2, Scaled


class Tiles(NamedTuple):
    """A format with a scale for each tile."""

    size: int  #: elements of a tile, along the dimension that is summed over
    weight_rows: int  #: along the other one, of weights
    dtype: type  #: of activations and weights
    gradient_dtype: type
    by_kernel: bool  #: of ours, on GPUs; else by `jax.nn.scaled_matmul`


FORMATS = {
    "fp8_block": Tiles(quantize.BLOCK, quantize.BLOCK, E4M3, E5M2, by_kernel=True),
    "mxfp8": Tiles(quantize.MX_BLOCK, 1, E4M3, E4M3, by_kernel=False),
    "nvfp4": Tiles(quantize.NV_BLOCK, 1, E2M1, E2M1, by_kernel=False),
}


class Spec(NamedTuple):
    """What is compiled in."""

    format: str
    num_contracted: int
    emulate: bool
    grad_reduce_dtype: type  # see `precision.recipe`
    name: str  # ends in the weight's letters, where there is a mesh
    mesh: Mesh | None = None  # that the operands lie on; None: one device

    @property
    def is_by_kernel(self) -> bool:
        """Whether our kernel multiplies."""
        return FORMATS[self.format].by_kernel and not self.emulate

    def dtype(self, of_activations: DTypeLike) -> DTypeLike:
        """What a product of activations puts out: a cast behind a kernel is a pass of its own."""
        return of_activations if self.is_by_kernel else jnp.float32

    def pinned(self, x: jax.Array, features: MeshAxes) -> jax.Array:
        """[token, feature] where our kernel wants it."""
        return block_product.pinned(self.mesh, x, features) if self.is_by_kernel else x

    @property
    def axes(self) -> block_product.Axes:
        """The mesh axes of a product's dimensions, which are XLA's choice without a kernel."""
        return block_product.axes_of(self.name, self.num_contracted)


class _Operand(NamedTuple):
    """[rows, terms] quantised along its terms."""

    scaled: Scaled
    block: tuple[int, int]
    scale: jax.Array | None  # of the whole; None: 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(spec: Spec, x: jax.Array, w: jax.Array, rng: jax.Array | None = None) -> jax.Array:
    """Contracts the last dimensions of x with the first of w; in x's dtype, which w's may exceed.

    Args:
      rng: key of stochastic rounding of the gradient; None: to nearest.
    """
    return _forward(spec, x, w, rng)[0]


def _forward(spec: Spec, x, w, rng):
    tiles = FORMATS[spec.format]
    inputs = math.prod(w.shape[: spec.num_contracted])
    outputs = w.shape[spec.num_contracted :]
    like_w, w = jnp.zeros((0,), w.dtype), w.astype(x.dtype)  # see `recipe.py`
    x_MK, w_KN = x.reshape(-1, inputs), w.reshape(inputs, -1)
    with jax.named_scope(f"{spec.name}:output"):
        x_MK = spec.pinned(x_MK, spec.axes.inputs)
        of_x = _in_tiles(tiles, x_MK, tiles.dtype)
        of_w = _columns_in_tiles(tiles, w_KN, tiles.dtype, tiles.weight_rows)
        batch = x.shape[: x.ndim - spec.num_contracted]
        y = _matmul(spec, of_x, of_w, spec.axes.output(batch), spec.dtype(x.dtype))
    return y.astype(x.dtype).reshape(*batch, *outputs), (x, w, like_w, rng)


def _backward(spec: Spec, residuals, g):
    x, w, like_w, rng = residuals
    rngs = (None, None) if rng is None else tuple(jax.random.split(rng))
    tiles = FORMATS[spec.format]
    inputs = math.prod(w.shape[: spec.num_contracted])
    x_MK, w_KN = x.reshape(-1, inputs), w.reshape(inputs, -1)
    x_MK = spec.pinned(x_MK, spec.axes.inputs)
    g_MN = spec.pinned(g.reshape(x_MK.shape[0], -1), spec.axes.outputs)
    with jax.named_scope(f"{spec.name}:d_input"):
        of_g = _in_tiles(tiles, g_MN, tiles.gradient_dtype, rng=rngs[0])
        of_w = _in_tiles(tiles, w_KN, tiles.dtype, tiles.weight_rows)
        where = spec.axes.d_input(x.shape[: x.ndim - spec.num_contracted])
        d_x = _matmul(spec, of_g, of_w, where, spec.dtype(g.dtype))
    with jax.named_scope(f"{spec.name}:d_weight"):
        of_g = _columns_in_tiles(tiles, g_MN, tiles.gradient_dtype, rng=rngs[1])
        of_x = _columns_in_tiles(tiles, x_MK, tiles.dtype)
        d_w = _matmul(spec, of_x, of_g, spec.axes.d_weight(), spec.grad_reduce_dtype)
    return d_x.astype(x.dtype).reshape(x.shape), d_w.astype(like_w.dtype).reshape(w.shape), None


product.defvjp(_forward, _backward)


def _in_tiles(
    tiles: Tiles, a: jax.Array, dtype: type, rows: int = 1, rng: jax.Array | None = None
) -> _Operand:
    """[rows, terms] quantised; a tile has `rows` of its rows."""
    a = jnp.pad(a, ((0, 0), (0, -a.shape[1] % tiles.size)))  # terms of 0 up to a whole tile
    block = (rows, tiles.size)
    if dtype == E2M1:
        scaled, scale = quantize.nvfp4(a, rng)
        return _Operand(scaled, block, scale)
    if not tiles.by_kernel:
        return _Operand(quantize.mxfp8(a, dtype, rng), block, None)
    return _Operand(quantize.by_blocks(a, block, dtype, rng), block, None)


def _columns_in_tiles(
    tiles: Tiles, a: jax.Array, dtype: type, rows: int = 1, rng: jax.Array | None = None
) -> _Operand:
    """[terms, rows] quantised as [rows, terms]; cast first, where that is what has fewer bytes."""
    if not tiles.by_kernel:
        return _in_tiles(tiles, a.T, dtype, rows, rng)
    a = jnp.pad(a, ((0, -a.shape[0] % tiles.size), (0, 0)))
    values, scale = quantize.by_blocks(a, (tiles.size, rows), dtype, rng)
    return _Operand(Scaled(values.T, scale.T), (rows, tiles.size), None)


def _matmul(
    spec: Spec,
    a: _Operand,
    b: _Operand,
    where: Where,
    dtype: DTypeLike,
) -> jax.Array:
    """Σ_k a[m, k] · b[n, k] in float32, rounded to `dtype`; m may be two dimensions, (B, T)."""
    if spec.is_by_kernel:
        return block_product.matmul(spec.mesh, a.scaled, b.scaled, where, dtype)
    if spec.emulate:
        wide_a, wide_b = (quantize.dequantize(each.scaled, each.block) for each in (a, b))
        over_terms = (((1,), (1,)), ((), ()))
        y = lax.dot_general(
            wide_a,
            wide_b,
            over_terms,
            precision=lax.Precision.HIGHEST,
            preferred_element_type=dtype,
        )
    else:
        values_a, scale_a, values_b, scale_b = (x[None] for each in (a, b) for x in each.scaled)
        y = jax.nn.scaled_matmul(
            values_a, values_b, scale_a, scale_b, preferred_element_type=dtype
        )[0]
    for each in (a, b):
        y = y if each.scale is None else y.astype(jnp.float32) * each.scale
    return y
