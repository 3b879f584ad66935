"""Blocks of rows, each times the matrix of its group: the products of a mixture of experts.

    out[i] = blocks[i] · matrices[group[i]]                              for i < num_used, else 0
    d_blocks[i] = d_out[i] · matrices[group[i]]ᵀ                         `product`, transposed
    d_matrices[g] = Σ blocks[i]ᵀ · d_out[i]                              over the blocks of group g

A block holds rows of one group; who makes them fills each group's last block up with zeros
(`models.grouped.lay_out`), so groups may have any number of rows or none. One program computes one
block of rows and some columns, blocks that are not in use cost a program that writes zeros, and
none computes what is not asked for. Neighbouring programs share a matrix, which stays in the cache.

Operands are bfloat16, float32 (multiplied in float32, not in TF32) or FP8, each of a format of its
own (`fp8_dot.py`); their scales are the caller's. Sums are float32, rounded once to the result.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton
from jax.typing import DTypeLike

from jaxtrain.kernels.blocks import Block, GroupedBlocks
from jaxtrain.kernels.fp8_dot import LEAST_TERMS, fp8_dot

#: The smallest size of a matrix product in Triton, thus the fewest rows of a block; in FP8 the
#: gradient of a matrix sums over a block's rows.
LEAST, LEAST_IN_FP8 = 16, LEAST_TERMS


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is compiled in."""

    blocks: GroupedBlocks
    has_fp8: bool  # whether the device multiplies in FP8
    interpret: bool = False  # runs on CPUs, to check numbers, and as slowly as that is


def product(
    spec: Spec,
    blocks: jax.Array,
    matrices: jax.Array,
    group: jax.Array,
    num_used: jax.Array,
    dtype: DTypeLike,
    *,
    transposed: bool = False,
) -> jax.Array:
    """Each block times the matrix of its group, or that matrix transposed; 0 of unused blocks.

    Args:
      blocks: [block, row, D]; rows are a power of two and at least `LEAST`.
      matrices: [group, D, F], or [group, F, D] if transposed.
      group: [block]; of those in use it may not fall, so that each group's stand together.
      num_used: how many are in use, from the first on.
      dtype: of the result.

    Raises:
      ValueError: for blocks of other sizes, or FP8 operands on a device without FP8.
    """
    least = _least(spec, blocks, matrices)
    num_blocks, rows, num_columns = *blocks.shape[:2], matrices.shape[1 if transposed else 2]
    if rows < least or rows & (rows - 1):
        raise ValueError(f"blocks of {rows} rows must be a power of two, at least {least}.")
    blocks, matrices = _fill(blocks, (2,), least), _fill(matrices, (1, 2), least)
    block, (num_matrices, *shape) = spec.blocks.product, matrices.shape
    columns, num_terms = shape if transposed else reversed(shape)
    tile = math.gcd(columns, block.cols)
    of_columns = (
        pl.BlockSpec((num_matrices, tile, num_terms), lambda i, j: (0, j, 0))
        if transposed
        else pl.BlockSpec((num_matrices, num_terms, tile), lambda i, j: (0, 0, j))
    )
    kernel = functools.partial(
        _product_kernel,
        terms=math.gcd(num_terms, block.rows),
        transposed=transposed,
        interpret=spec.interpret,
    )
    out = _call(
        kernel, "grouped_product_kernel", spec, block, (num_blocks, columns // tile),
        in_specs=[
            pl.BlockSpec((None,), lambda i, j: (i,)),
            pl.BlockSpec((None,), lambda i, j: (0,)),
            pl.BlockSpec((None, rows, num_terms), lambda i, j: (i, 0, 0)),
            of_columns,
        ],
        out_specs=pl.BlockSpec((None, rows, tile), lambda i, j: (i, 0, j)),
        out_shape=jax.ShapeDtypeStruct((num_blocks, rows, columns), dtype),
    )(group.astype(jnp.int32), num_used.astype(jnp.int32).reshape(1), blocks, matrices)  # fmt: skip
    return out[:, :, :num_columns]


def _product_kernel(
    group, num_used, x, matrices, out, *, terms: int, transposed: bool, interpret: bool
):
    """Some columns of one block's product."""
    of_group = group[...]
    is_used = pl.program_id(0) < num_used[...]
    # (A choice between two constants gets a wrong type on the way to Triton.)
    num_turns = is_used.astype(jnp.int32) * (x.shape[1] // terms)

    def add(turn, total):
        here = pl.ds(turn * terms, terms)
        part = matrices[of_group, :, here].T if transposed else matrices[of_group, here, :]
        return total + _dot(x[:, here], part, interpret)

    nothing = jnp.zeros(out.shape, jnp.float32)
    out[...] = lax.fori_loop(0, num_turns, add, nothing).astype(out.dtype)


def of_matrices(
    spec: Spec,
    blocks: jax.Array,
    d_out: jax.Array,
    num_groups: int,
    group: jax.Array,
    num_used: jax.Array,
    dtype: DTypeLike,
) -> jax.Array:
    """The gradient of each group's matrix, [group, D, F]; 0 of a group without blocks.

    Args and Raises: as of `product`; d_out is [block, row, F].
    """
    least = _least(spec, blocks, d_out)
    shape = (blocks.shape[2], d_out.shape[2])
    (num_blocks, rows), block = blocks.shape[:2], spec.blocks.of_matrices
    blocks, d_out = _fill(blocks, (2,), least), _fill(d_out, (2,), least)
    num_terms, num_columns = blocks.shape[2], d_out.shape[2]
    tiles = math.gcd(num_terms, block.rows), math.gcd(num_columns, block.cols)
    number = jnp.arange(num_blocks, dtype=jnp.int32)
    in_use = jnp.where(number < num_used, group, -1)
    counts = jnp.sum(
        in_use[None, :] == jnp.arange(num_groups, dtype=group.dtype)[:, None],
        axis=1, dtype=jnp.int32,
    )  # fmt: skip
    ends = jnp.cumsum(counts)
    d_matrices = _call(
        functools.partial(_of_matrices_kernel, interpret=spec.interpret),
        "grouped_of_matrices_kernel", spec, block,
        (num_terms // tiles[0], num_columns // tiles[1], num_groups),
        in_specs=[
            pl.BlockSpec((None, 2), lambda i, j, g: (g, 0)),
            pl.BlockSpec((num_blocks, rows, tiles[0]), lambda i, j, g: (0, 0, i)),
            pl.BlockSpec((num_blocks, rows, tiles[1]), lambda i, j, g: (0, 0, j)),
        ],
        out_specs=pl.BlockSpec((None, *tiles), lambda i, j, g: (g, i, j)),
        out_shape=jax.ShapeDtypeStruct((num_groups, num_terms, num_columns), dtype),
    )(jnp.stack([ends - counts, ends], axis=-1), blocks, d_out)  # fmt: skip
    return d_matrices[:, : shape[0], : shape[1]]


def _of_matrices_kernel(visited, x, d_out, d_matrix, *, interpret: bool):
    """One tile of one group's gradient."""

    def add(block, total):
        return total + _dot(x[block, :, :].T, d_out[block, :, :], interpret)

    nothing = jnp.zeros(d_matrix.shape, jnp.float32)
    total = lax.fori_loop(visited[0], visited[1], add, nothing)
    d_matrix[...] = total.astype(d_matrix.dtype)


def _dot(lhs: jax.Array, rhs: jax.Array, interpret: bool) -> jax.Array:
    """Product in float32; of float32, in full."""
    if _is_fp8(lhs) and not interpret:
        return fp8_dot(lhs, rhs)
    precision = lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else None
    return lax.dot_general(
        lhs, rhs, (((1,), (0,)), ((), ())), precision, preferred_element_type=jnp.float32
    )


def _is_fp8(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1


def _least(spec: Spec, lhs: jax.Array, rhs: jax.Array) -> int:
    """The smallest size of a product of such operands."""
    if _is_fp8(lhs) != _is_fp8(rhs):
        raise ValueError(f"{lhs.dtype} and {rhs.dtype} must both be FP8, or neither.")
    if not _is_fp8(lhs):
        return LEAST
    if not spec.has_fp8:
        raise ValueError(
            f"{lhs.dtype} has no matmul on this device: it takes compute capability 8.9."
        )
    return LEAST_IN_FP8


def _fill(x: jax.Array, axes: tuple[int, ...], least: int) -> jax.Array:
    """`x` with zeros up to a multiple of `least` along `axes`."""
    missing = [-size % least if axis in axes else 0 for axis, size in enumerate(x.shape)]
    return jnp.pad(x, [(0, number) for number in missing]) if any(missing) else x


def _call(
    kernel: Callable, name: str, spec: Spec, block: Block, grid: tuple[int, ...], **where: Any
):
    return pl.pallas_call(
        kernel,
        grid=grid,
        compiler_params=pltriton.CompilerParams(
            num_warps=block.num_warps, num_stages=block.num_stages
        ),
        interpret=spec.interpret,
        name=name,
        **where,
    )
