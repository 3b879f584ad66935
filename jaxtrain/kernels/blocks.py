"""Block sizes of the kernels by GPU generation, in one place.

None has been timed yet: they are shapes that are usual for such kernels in Triton and that fit each
generation's shared memory (compiling for it is the check). `scripts/benchmarks/kernel_blocks.py`
times others where there is a GPU.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Block:
    """How one kernel cuts its work; sizes are powers of two and at least 16.

    What rows and cols are is the kernel's to say.
    """

    rows: int
    cols: int
    num_warps: int
    num_stages: int  # loads of the loop that are under way at once


@dataclasses.dataclass(frozen=True)
class FlashBlocks:
    """Tokens per block of flash attention: rows stay, cols are looped over."""

    forward: Block  # rows of queries, cols of keys
    of_queries: Block  # gradient of queries: likewise
    of_keys: Block  # gradient of keys and values: rows of keys, cols of queries

    @property
    def tokens(self) -> int:
        """What a row's length is filled up to a multiple of."""
        blocks = (self.forward, self.of_queries, self.of_keys)
        return max(size for block in blocks for size in (block.rows, block.cols))


@dataclasses.dataclass(frozen=True)
class GroupedBlocks:
    """Blocks of the grouped matmul: at most so much; less where it must divide a matrix."""

    rows: int  # that one program multiplies with one matrix
    product: Block  # rows are terms of a sum per turn of the loop, cols columns of the result
    of_matrices: Block  # gradient of matrices: rows and columns of a matrix


#: Generation -> largest head size (of 2-byte numbers) -> blocks.
FLASH_ATTENTION: Mapping[str, Mapping[int, FlashBlocks]] = {
    "hopper": {
        64: FlashBlocks(Block(128, 64, 4, 3), Block(64, 64, 4, 3), Block(64, 64, 4, 3)),
        128: FlashBlocks(Block(128, 64, 8, 3), Block(64, 64, 4, 2), Block(64, 64, 8, 2)),
        256: FlashBlocks(Block(64, 64, 8, 2), Block(64, 32, 8, 2), Block(32, 32, 4, 2)),
        512: FlashBlocks(Block(32, 32, 4, 2), Block(32, 16, 4, 2), Block(16, 16, 4, 2)),
    },
    "ampere": {
        64: FlashBlocks(Block(128, 64, 4, 3), Block(64, 64, 4, 2), Block(64, 64, 4, 2)),
        128: FlashBlocks(Block(128, 32, 4, 3), Block(64, 32, 4, 2), Block(64, 32, 4, 2)),
        256: FlashBlocks(Block(64, 32, 4, 2), Block(32, 32, 4, 2), Block(32, 32, 4, 2)),
        512: FlashBlocks(Block(32, 16, 4, 2), Block(16, 16, 4, 2), Block(16, 16, 4, 2)),
    },
}
#: Generation -> blocks.
GROUPED_MATMUL: Mapping[str, GroupedBlocks] = {
    "hopper": GroupedBlocks(128, Block(64, 128, 8, 3), Block(128, 128, 8, 2)),
    "ampere": GroupedBlocks(128, Block(32, 128, 8, 3), Block(128, 128, 8, 2)),
}
#: Generation -> block of the product of FP8 tiles; "ampere" is Ada's here, since A100 has no FP8.
BLOCK_SCALED_MATMUL: Mapping[str, Block] = {
    "hopper": Block(128, 128, 8, 3),
    "ampere": Block(64, 128, 4, 3),
}
#: Largest head that `flash_attention` takes: of 4-byte numbers, which count twice.
MAX_HEAD_DIM = 256


def generation(device: Any) -> str:
    """The tables' key for a `jax.Device`: what is newer than Hopper is taken for it."""
    capability = str(getattr(device, "compute_capability", "8.0"))
    return "hopper" if int(capability.partition(".")[0]) >= 9 else "ampere"


def has_fp8(device: Any) -> bool:
    """Whether a `jax.Device` multiplies in FP8: from compute capability 8.9 on."""
    major, _, minor = str(getattr(device, "compute_capability", "8.0")).partition(".")
    return (int(major), int(minor or 0)) >= (8, 9)


def flash_attention(device: Any, head_dim: int, itemsize: int) -> FlashBlocks:
    """Blocks for heads of that many numbers of that many bytes.

    Raises:
      ValueError: for heads that are too large.
    """
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head size {head_dim} must be at most {MAX_HEAD_DIM}.")
    table = FLASH_ATTENTION[generation(device)]
    return table[min(size for size in table if size >= head_dim * itemsize / 2)]


def grouped_matmul(device: Any) -> GroupedBlocks:
    """Blocks of the grouped matmul on a device."""
    return GROUPED_MATMUL[generation(device)]


def block_scaled_matmul(device: Any) -> Block:
    """Block of the product of FP8 tiles on a device: rows of the one operand, cols of the other."""
    return BLOCK_SCALED_MATMUL[generation(device)]
