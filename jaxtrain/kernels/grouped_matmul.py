"""Blocks of rows, each times the matrix of its group: the products of a mixture of experts.

    out[i] = blocks[i] · matrices[group[i]]                              for i < num_used, else 0
    d_blocks[i] = d_out[i] · matrices[group[i]]ᵀ
    d_matrices[g] = Σ blocks[i]ᵀ · d_out[i]                   over the blocks of group g, in float32

A block holds rows of one group; who makes them fills each group's last block up with zeros
(`models.grouped.lay_out`), so groups may have any number of rows or none. One program computes one
block of rows and some columns, blocks that are not in use cost a program that writes zeros, and
none computes what is not asked for. Neighbouring programs share a matrix, which stays in the cache.

Products are of the inputs' format, summed in float32; float32 inputs are multiplied in float32, not
in TF32.
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

from jaxtrain.kernels.blocks import Block, GroupedBlocks

#: The smallest size of a matrix product in Triton, thus the fewest rows of a block.
LEAST = 16


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is compiled in."""

    blocks: GroupedBlocks
    interpret: bool = False  # runs on CPUs, to check numbers, and as slowly as that is


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def grouped_matmul(
    spec: Spec, blocks: jax.Array, matrices: jax.Array, group: jax.Array, num_used: jax.Array
) -> jax.Array:
    """Each block times the matrix of its group, in the blocks' dtype; zeros for unused blocks.

    Args:
      blocks: [block, row, D]; rows are a power of two and at least 16.
      matrices: [group, D, F].
      group: [block]; of those in use it may not fall, so that each group's stand together.
      num_used: how many are in use, from the first on.
    """
    return _product(spec, blocks, matrices, group, num_used, transposed=False)


def _forward(spec, blocks, matrices, group, num_used):
    out = _product(spec, blocks, matrices, group, num_used, transposed=False)
    return out, (blocks, matrices, group, num_used)


def _backward(spec, residuals, d_out):
    blocks, matrices, group, num_used = residuals
    d_blocks = _product(spec, d_out, matrices, group, num_used, transposed=True)
    d_matrices = _of_matrices(spec, blocks, d_out, matrices, group, num_used)
    return d_blocks, d_matrices, None, None


grouped_matmul.defvjp(_forward, _backward)


def _product(spec, blocks, matrices, group, num_used, *, transposed: bool) -> jax.Array:
    num_blocks, rows, num_columns = *blocks.shape[:2], matrices.shape[1 if transposed else 2]
    if rows < LEAST or rows & (rows - 1):
        raise ValueError(f"blocks of {rows} rows must be a power of two, at least {LEAST}.")
    blocks, matrices = _fill(blocks, (2,)), _fill(matrices, (1, 2))
    block, (num_matrices, *shape) = spec.blocks.product, matrices.shape
    columns, num_terms = shape if transposed else reversed(shape)
    tile = math.gcd(columns, block.cols)
    of_columns = (
        pl.BlockSpec((num_matrices, tile, num_terms), lambda i, j: (0, j, 0))
        if transposed
        else pl.BlockSpec((num_matrices, num_terms, tile), lambda i, j: (0, 0, j))
    )
    kernel = functools.partial(
        _product_kernel, terms=math.gcd(num_terms, block.rows), transposed=transposed
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
        out_shape=jax.ShapeDtypeStruct((num_blocks, rows, columns), blocks.dtype),
    )(group.astype(jnp.int32), num_used.astype(jnp.int32).reshape(1), blocks, matrices)  # fmt: skip
    return out[:, :, :num_columns]


def _product_kernel(group, num_used, x, matrices, out, *, terms: int, transposed: bool):
    """Some columns of one block's product."""
    of_group = group[...]
    is_used = pl.program_id(0) < num_used[...]
    # (A choice between two constants gets a wrong type on the way to Triton.)
    num_turns = is_used.astype(jnp.int32) * (x.shape[1] // terms)

    def add(turn, total):
        here = pl.ds(turn * terms, terms)
        part = matrices[of_group, :, here].T if transposed else matrices[of_group, here, :]
        return total + _dot(x[:, here], part)

    nothing = jnp.zeros(out.shape, jnp.float32)
    out[...] = lax.fori_loop(0, num_turns, add, nothing).astype(out.dtype)


def _of_matrices(spec, blocks, d_out, matrices, group, num_used) -> jax.Array:
    """The gradient of each group's matrix; 0 of a group without blocks."""
    num_blocks, rows = blocks.shape[:2]
    blocks, d_out, block = _fill(blocks, (2,)), _fill(d_out, (2,)), spec.blocks.of_matrices
    num_terms, num_columns = blocks.shape[2], d_out.shape[2]
    tiles = math.gcd(num_terms, block.rows), math.gcd(num_columns, block.cols)
    number = jnp.arange(num_blocks, dtype=jnp.int32)
    in_use = jnp.where(number < num_used, group, -1)
    counts = jnp.sum(
        in_use[None, :] == jnp.arange(len(matrices), dtype=group.dtype)[:, None],
        axis=1, dtype=jnp.int32,
    )  # fmt: skip
    ends = jnp.cumsum(counts)
    d_matrices = _call(
        _of_matrices_kernel, "grouped_of_matrices_kernel", spec, block,
        (num_terms // tiles[0], num_columns // tiles[1], len(matrices)),
        in_specs=[
            pl.BlockSpec((None, 2), lambda i, j, g: (g, 0)),
            pl.BlockSpec((num_blocks, rows, tiles[0]), lambda i, j, g: (0, 0, i)),
            pl.BlockSpec((num_blocks, rows, tiles[1]), lambda i, j, g: (0, 0, j)),
        ],
        out_specs=pl.BlockSpec((None, *tiles), lambda i, j, g: (g, i, j)),
        out_shape=jax.ShapeDtypeStruct((len(matrices), num_terms, num_columns), matrices.dtype),
    )(jnp.stack([ends - counts, ends], axis=-1), blocks, d_out)  # fmt: skip
    return d_matrices[:, : matrices.shape[1], : matrices.shape[2]]


def _of_matrices_kernel(visited, x, d_out, d_matrix):
    """One tile of one group's gradient."""

    def add(block, total):
        return total + _dot(x[block, :, :].T, d_out[block, :, :])

    nothing = jnp.zeros(d_matrix.shape, jnp.float32)
    total = lax.fori_loop(visited[0], visited[1], add, nothing)
    d_matrix[...] = total.astype(d_matrix.dtype)


def _dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Product in float32; of float32, in full."""
    precision = lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else None
    return jnp.dot(lhs, rhs, preferred_element_type=jnp.float32, precision=precision)


def _fill(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """`x` with zeros up to a multiple of 16 along `axes`."""
    missing = [-size % LEAST if axis in axes else 0 for axis, size in enumerate(x.shape)]
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
