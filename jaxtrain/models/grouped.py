"""Rows through the matrix of their group: a matmul per block of rows, no more work than there is.

    layout = lay_out(expert, num_experts)          where each row goes: its expert's blocks of rows
    blocks = layout.gather(rows)                   [block, row in it, D], 0 where one is not full
    outs = product(blocks, w_EDF, layout, dtype)   [block, row in it, F]
    layout.scatter(outs)                           back at the rows

`jax.lax.ragged_dot` means the same and is what the tests compare with. XLA expands it on CPUs and
NVIDIA GPUs into one product of all rows with all matrices, masked: num_experts times the work. Here
a loop takes one block of one expert after the other, which suits a CPU; a GPU takes all of them at
once, by `kernels.grouped_matmul`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
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
        return scattered(rows, self.slot, shape[0] * shape[1]).reshape(shape)

    def scatter(self, blocks: jax.Array) -> jax.Array:
        """[block, row in it, F] as [row, F]; 0 for rows without an expert."""
        flat = blocks.reshape(-1, blocks.shape[-1])
        return jnp.take(flat, self.slot, axis=0, mode="fill", fill_value=0)


def scattered(rows: jax.Array, slot: jax.Array, num_slots: int) -> jax.Array:
    """Rows at their slots, 0 elsewhere; slots are unique but for those from `num_slots` on: none.

    Bytes are set and not added: an addition of less than 32 bits is a loop on a GPU.
    """
    at = jnp.zeros((num_slots, rows.shape[-1]), rows.dtype).at[slot]
    return at.set(rows, mode="drop") if rows.dtype == jnp.uint8 else at.add(rows, mode="drop")


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


def product(
    blocks: Float[jax.Array, "block row D"],
    w_EDF: Float[jax.Array, "E D F"],
    layout: Layout,
    dtype: DTypeLike,
) -> Float[jax.Array, "block row F"]:
    """Each block [row, D] times the matrix of its expert: [row, F]; unused blocks are 0."""
    outs = jnp.zeros((*blocks.shape[:2], w_EDF.shape[-1]), dtype)

    def one(index: jax.Array, outs: jax.Array) -> jax.Array:
        return outs.at[index].set(_dot(blocks[index], w_EDF[layout.expert[index]], dtype))

    return lax.fori_loop(0, layout.num_used, one, outs)


def of_matrices(
    blocks: Float[jax.Array, "block row D"],
    d_outs: Float[jax.Array, "block row F"],
    num_experts: int,
    layout: Layout,
    dtype: DTypeLike,
) -> Float[jax.Array, "E D F"]:
    """The gradient of each expert's matrix, summed in float32."""

    def one(index: jax.Array, d_w: jax.Array) -> jax.Array:
        return d_w.at[layout.expert[index]].add(_dot(blocks[index].T, d_outs[index], jnp.float32))

    shape = (num_experts, blocks.shape[-1], d_outs.shape[-1])
    return lax.fori_loop(0, layout.num_used, one, jnp.zeros(shape, jnp.float32)).astype(dtype)


def _dot(lhs: jax.Array, rhs: jax.Array, dtype: DTypeLike) -> jax.Array:
    """float32 in full; operands of two FP8 formats as they are."""
    precision = lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else None
    over = (((1,), (0,)), ((), ()))
    return lax.dot_general(lhs, rhs, over, precision, preferred_element_type=dtype)
