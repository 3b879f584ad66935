"""The product of two FP8 matrices that have a scale for each 128 terms of a row.

    y[m, n] = Σ_t scale_a[m, t] · scale_b[n, t] · Σ_k a[m, k] · b[n, k]      k in [128·t, 128·(t+1))

Tensor cores sum 128 terms; what they give is multiplied by its scales and added up in float32
(DeepSeek-V3, arXiv 2412.19437, section 3.3.2: the "promotion" that their short sums need). Rows of
`b` may share scales, 128 by 128: weights do. Terms of both lie next to each other in memory, as
Hopper's FP8 instruction takes them, so who wants another product transposes the values before.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton
from jax.typing import DTypeLike

from jaxtrain.kernels.blocks import Block
from jaxtrain.kernels.fp8_dot import fp8_dot

#: Terms of a row, and rows of `b`, that share a scale.
TILE = 128
#: Blocks of rows whose programs run side by side: what they read of `b` is then in the cache.
_NEIGHBOURS = 8


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is compiled in."""

    block: Block  # rows of `a`, and cols of the result, which are rows of `b`; cols divide TILE
    interpret: bool = False  # runs on CPUs, to check numbers, and as slowly as that is


def block_scaled_matmul(
    spec: Spec,
    a: jax.Array,
    scale_a: jax.Array,
    b: jax.Array,
    scale_b: jax.Array,
    dtype: DTypeLike,
) -> jax.Array:
    """[M, N] in `dtype`; sums are in float32.

    Args:
      a: [M, terms] in E4M3 or E5M2; terms may end within a tile, here and of b.
      scale_a: [M, tile] in float32. A NaN makes its row of the result NaN.
      b: [N, terms] in E4M3 or E5M2.
      scale_b: [N, tile], or [block of 128 rows, tile], in float32.
    """
    (num_rows, num_cols), num_terms = (a.shape[0], b.shape[0]), a.shape[1]
    num_tiles = -(-num_terms // TILE)
    is_shared = scale_b.shape[0] != num_cols
    expected = (num_rows, num_tiles), (-(-num_cols // TILE) if is_shared else num_cols, num_tiles)
    if b.shape[1] != num_terms or (scale_a.shape, scale_b.shape) != expected:
        raise ValueError(
            f"operands {a.shape} and {b.shape} need as many terms, and scales {expected[0]} and "
            f"{expected[1]}, not {scale_a.shape} and {scale_b.shape}."
        )
    rows, cols = spec.block.rows, spec.block.cols
    a, b = _fill(a, rows, TILE), _fill(b, cols, TILE)
    # A turn of the loop reads the scales of one tile of terms: they are to lie side by side.
    scale_a = _fill(scale_a.T, 1, rows)
    scale_b = scale_b.T if is_shared else _fill(scale_b.T, 1, cols)
    in_grid = -(-num_rows // rows), -(-num_cols // cols)
    row, col = (functools.partial(_place, *in_grid, axis=axis) for axis in (0, 1))
    of_scale_b = (
        pl.BlockSpec((num_tiles, None), lambda i: (0, lax.div(col(i) * cols, TILE)))
        if is_shared
        else pl.BlockSpec((num_tiles, cols), lambda i: (0, col(i)))
    )
    y = pl.pallas_call(
        functools.partial(_kernel, interpret=spec.interpret),
        grid=(in_grid[0] * in_grid[1],),
        in_specs=[
            pl.BlockSpec((rows, a.shape[1]), lambda i: (row(i), 0)),
            pl.BlockSpec((num_tiles, rows), lambda i: (0, row(i))),
            pl.BlockSpec((cols, b.shape[1]), lambda i: (col(i), 0)),
            of_scale_b,
        ],
        out_specs=pl.BlockSpec((rows, cols), lambda i: (row(i), col(i))),
        out_shape=jax.ShapeDtypeStruct((len(a), len(b)), dtype),
        compiler_params=pltriton.CompilerParams(
            num_warps=spec.block.num_warps, num_stages=spec.block.num_stages
        ),
        interpret=spec.interpret,
        name="block_scaled_kernel",
    )(a, scale_a, b, scale_b)
    return y[:num_rows, :num_cols]


def _kernel(a, scale_a, b, scale_b, y, *, interpret: bool):
    """One block of the result."""

    def add(tile, total):
        here = pl.ds(tile * TILE, TILE)
        partial = _dot(a[:, here], b[:, here].T, interpret)
        of_rows, of_cols = scale_a[tile, :], scale_b[tile, ...]
        if of_cols.ndim == 0:
            return total + partial * (of_rows * of_cols)[:, None]
        return total + partial * of_rows[:, None] * of_cols[None, :]

    nothing = jnp.zeros(y.shape, jnp.float32)
    y[...] = lax.fori_loop(0, scale_a.shape[0], add, nothing).astype(y.dtype)


def _dot(lhs: jax.Array, rhs: jax.Array, interpret: bool) -> jax.Array:
    """Product in float32, which the interpreter has of FP8 only by way of float32."""
    if not interpret:
        return fp8_dot(lhs, rhs)
    lhs, rhs = lhs.astype(jnp.float32), rhs.astype(jnp.float32)
    return lax.dot_general(lhs, rhs, (((1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)


def _place(num_rows: int, num_cols: int, program: jax.Array, *, axis: int) -> jax.Array:
    """The block of rows (axis 0) or of columns (1) that a program computes."""
    in_band = _NEIGHBOURS * num_cols
    first = lax.div(program, in_band) * _NEIGHBOURS
    height = jnp.minimum(num_rows - first, _NEIGHBOURS)
    within = lax.rem(program, in_band)
    return first + lax.rem(within, height) if axis == 0 else lax.div(within, height)


def _fill(x: jax.Array, *multiples: int) -> jax.Array:
    """`x` with zeros up to these multiples of its sizes."""
    missing = [-size % multiple for size, multiple in zip(x.shape, multiples, strict=True)]
    return jnp.pad(x, [(0, number) for number in missing]) if any(missing) else x
