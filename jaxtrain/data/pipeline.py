"""Making batches ahead of the step, through Grain.

Grain costs about 0.16 ms per element whatever its size, so an element is a block of steps with
enough tokens to outweigh that; it is cut into batches here. Elements are made by index, so threads
and worker processes only decide who makes them, never what is in them.
"""

import gc
from collections.abc import Iterator
from typing import Any, Protocol

import grain
import numpy as np
from absl import flags

from jaxtrain.data.batches import AnyBatch
from jaxtrain.data.config import DataConfig

#: Positions of a block: 128 Ki make Grain's share about 1 ns per token, and are 3 MB.
_BLOCK_POSITIONS = 1 << 17


class BatchMaker(Protocol):
    """What makes any block of batches from its steps alone; picklable."""

    config: DataConfig

    def block(self, start: int, stop: int, rows: slice | None = None) -> AnyBatch:
        """The batches of steps [start, stop), or `rows` of each, one after another."""
        ...

    def batch_size(self, step: int) -> int:
        """Rows of the global batch at a step."""
        ...


def iterate(maker: BatchMaker, start: int, stop: int, rows: slice) -> Iterator[AnyBatch]:
    """`rows` of the batches of steps [start, stop), made ahead as `maker.config` says."""
    if start >= stop:
        return
    blocks = _Blocks(maker, start, stop, rows)
    iterator = iter(_dataset(blocks, maker.config.num_workers, maker.config.prefetch))
    try:
        for index, block in enumerate(iterator):
            block = _plain(block)
            first = 0
            for step in blocks.steps(index):
                end = first + blocks.num_rows(step)
                yield _rows(block, slice(first, end))
                first = end
    finally:
        iterator.close()
        if maker.config.num_workers:
            # Grain's thread ends in a reference cycle that keeps the last block's shared memory.
            gc.collect()


def _plain(batch: Any) -> Any:
    """A batch, which may hold others, with its arrays as views of shared memory."""
    return type(batch)(*[_plain(x) if isinstance(x, tuple) else np.asarray(x) for x in batch])


def _rows(batch: Any, rows: slice) -> Any:
    """These rows of a batch, which may hold others."""
    return type(batch)(*[_rows(x, rows) if isinstance(x, tuple) else x[rows] for x in batch])


class _Blocks:
    """A run of steps as a sequence of blocks."""

    def __init__(self, maker: BatchMaker, start: int, stop: int, rows: slice):
        self._maker = maker
        self._start, self._stop, self._rows = start, stop, rows
        self.steps_per_block = 1
        if maker.config.prefetch:
            positions = max(self.num_rows(start), 1) * maker.config.seq_len
            self.steps_per_block = min(-(-_BLOCK_POSITIONS // positions), stop - start)

    def num_rows(self, step: int) -> int:
        return len(range(self._maker.batch_size(step))[self._rows])

    def steps(self, index: int) -> range:
        first = self._start + index * self.steps_per_block
        return range(first, min(first + self.steps_per_block, self._stop))

    def __len__(self) -> int:
        return -(-(self._stop - self._start) // self.steps_per_block)

    def __getitem__(self, index: int) -> AnyBatch:
        steps = self.steps(int(index))
        return self._maker.block(steps.start, steps.stop, self._rows)


def _dataset(blocks: _Blocks, num_workers: int, prefetch: int) -> grain.IterDataset:
    source = grain.MapDataset.source(blocks)
    buffered = -(-prefetch // (blocks.steps_per_block * max(num_workers, 1)))  # blocks
    if num_workers:
        if not flags.FLAGS.is_parsed():  # Grain reads its debug flags there, parsed or not
            flags.FLAGS.mark_as_parsed()
        alone = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        workers = grain.MultiprocessingOptions(num_workers, per_worker_buffer_size=buffered)
        return source.to_iter_dataset(alone).mp_prefetch(workers)
    threads = 1 if prefetch else 0
    return source.to_iter_dataset(
        grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffered)
    )
