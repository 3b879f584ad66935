"""Rows through the matrix of their group: a matmul per block of rows, no more work than there is.

    layout = lay_out(expert, num_experts)          where each row goes: its expert's blocks of rows
    blocks = layout.gather(rows)                   [block, row in it, D], 0 where one is not full
    outs = grouped_matmul(blocks, w_EDF, layout)   [block, row in it, F]
    layout.scatter(outs)                           back at the rows

`jax.lax.ragged_dot` means the same and is what the tests compare with. XLA expands it on CPUs and
NVIDIA GPUs into one product of all rows with all matrices, masked: num_experts times the work. Here
a loop takes one block of one expert after the other, which suits a CPU; a GPU takes all of them at
once, by `kernels.grouped_matmul`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

_LARGEST_BLOCK, SMALLEST_BLOCK = 128, 8  # rows


class Layout(NamedTuple):
    """Which block each row is in and which matrix each block is for."""

    slot: jax.Array  # [row]: its place among all blocks' rows; behind them where it has no expert
    expert: jax.Array  # [block]
    num_used: jax.Array  # blocks
    spread: jax.Array  # [block, 1]: 0s whose second dimension is a block's rows

    def gather(self, rows: jax.Array) -> jax.Array:
        """[row, D] as [block, row in it, D]."""
        shape = (*self.spread.shape, rows.shape[-1])
        flat = jnp.zeros((shape[0] * shape[1], shape[2]), rows.dtype)
        return flat.at[self.slot].add(rows, mode="drop").reshape(shape)

    def scatter(self, blocks: jax.Array) -> jax.Array:
        """[block, row in it, F] as [row, F]; 0 for rows without an expert."""
        flat = blocks.reshape(-1, blocks.shape[-1])
        return jnp.take(flat, self.slot, axis=0, mode="fill", fill_value=0)


def lay_out(expert: jax.Array, num_experts: int, smallest: int = SMALLEST_BLOCK) -> Layout:
    """Blocks of at least `smallest` rows, for rows of these experts; `num_experts` is none."""
    num_rows = len(expert)
    size = block_size(num_rows, num_experts, smallest)
    num_blocks = num_rows // size + num_experts
    counts = jnp.sum(expert[:, None] == jnp.arange(num_experts)[None], axis=0, dtype=jnp.int32)
    blocks_each = -(-counts // size)
    ends = jnp.cumsum(blocks_each)
    # The how manieth of its expert each row is: sorted by expert, those of one stand together.
    order = jnp.argsort(expert)
    starts = jnp.concatenate([jnp.cumsum(counts) - counts, jnp.sum(counts)[None]])
    sorted_expert = expert[order]
    rank = jnp.arange(num_rows, dtype=jnp.int32) - starts[sorted_expert]
    first = jnp.concatenate([ends - blocks_each, jnp.full((1,), num_blocks, ends.dtype)])
    slot = jnp.zeros_like(rank).at[order].set(first[sorted_expert] * size + rank)
    of_block = jnp.searchsorted(ends, jnp.arange(num_blocks), side="right")
    spread = jnp.zeros((num_blocks, size), jnp.int8)
    return Layout(slot, jnp.minimum(of_block, num_experts - 1), ends[-1], spread)


def block_size(num_rows: int, num_experts: int, smallest: int = SMALLEST_BLOCK) -> int:
    """Rows of a block: the power of two below an expert's even share, within limits."""
    share = max(1, num_rows // num_experts)
    return max(smallest, min(_LARGEST_BLOCK, 1 << (share.bit_length() - 1)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def grouped_matmul(
    blocks: Float[jax.Array, "block row D"],
    w_EDF: Float[jax.Array, "E D F"],
    layout: Layout,
    precision: lax.Precision | None,
) -> Float[jax.Array, "block row F"]:
    """Each block [row, D] times the matrix of its expert: [row, F]; unused blocks are 0."""
    dtype = blocks.dtype
    outs = jnp.zeros((*blocks.shape[:2], w_EDF.shape[-1]), dtype)

    def one(index: jax.Array, outs: jax.Array) -> jax.Array:
        out = jnp.matmul(blocks[index], w_EDF[layout.expert[index]], precision=precision)
        return outs.at[index].set(out.astype(dtype))

    return lax.fori_loop(0, layout.num_used, one, outs)


def _forward(blocks, w_EDF, layout, precision):
    return grouped_matmul(blocks, w_EDF, layout, precision), (blocks, w_EDF, layout)


def _backward(precision, kept, d_outs):
    blocks, w_EDF, layout = kept
    d_blocks = grouped_matmul(d_outs, w_EDF.swapaxes(1, 2), layout, precision)

    def one(index: jax.Array, d_w: jax.Array) -> jax.Array:
        of_block = jnp.matmul(
            blocks[index].T, d_outs[index], precision=precision, preferred_element_type=jnp.float32
        )
        return d_w.at[layout.expert[index]].add(of_block)

    d_w = lax.fori_loop(0, layout.num_used, one, jnp.zeros(w_EDF.shape, jnp.float32))
    return d_blocks, d_w.astype(w_EDF.dtype), None


grouped_matmul.defvjp(_forward, _backward)
