import itertools
import os
import time
from typing import NamedTuple

import numpy as np
import pytest

from jaxtrain.data import pipeline
from jaxtrain.data.config import DataConfig
from jaxtrain.data.loader import Loader
from jaxtrain.types import Batch


def rows(count):
    return [[row, 299] for row in range(count)]


@pytest.fixture
def make_loader(make_config):
    def make(documents, seed=0, **config):
        return Loader(make_config({"a": documents}, **({"seq_len": 2} | config)), seed)

    return make


def assert_same_stream(batches, loader, steps, part=None):
    batches = list(batches)
    assert len(batches) == len(steps)
    for batch, step in zip(batches, steps, strict=True):
        for one, other in zip(batch, loader.batch(step, part), strict=True):
            assert np.array_equal(one, other)
            assert one.dtype == other.dtype
            assert type(one) is np.ndarray
            assert one.flags.c_contiguous


@pytest.fixture(params=[1, 8, 10**6], ids=lambda positions: f"blocks of {positions}")
def block_positions(request, monkeypatch):
    monkeypatch.setattr(pipeline, "_BLOCK_POSITIONS", request.param)


@pytest.mark.usefixtures("block_positions")
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_iteration_gives_the_batches_by_index(make_loader, prefetch):
    loader = make_loader(rows(200), batch_size=3, batch_size_changes=((4, 5),), prefetch=prefetch)
    assert_same_stream(loader.iterate(2, 13), loader, range(2, 13))
    assert_same_stream(loader.iterate(2, 9, slice(1, 3)), loader, range(2, 9), slice(1, 3))
    assert list(loader.iterate(3, 3)) == []


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_worker_processes_change_nothing_and_drop_nothing(make_loader, num_workers, monkeypatch):
    """LDR-11: 21 rows in batches of 7: three batches with all rows, whatever the workers."""
    monkeypatch.setattr(pipeline, "_BLOCK_POSITIONS", 1)  # each batch from another worker
    loader = make_loader(rows(21), batch_size=7, num_workers=num_workers)
    batches = list(loader.iterate(0, 3))
    assert sorted(np.concatenate([batch.inputs[:, 0] for batch in batches])) == list(range(21))
    assert_same_stream(batches, loader, range(3))


def test_stream_resumes_exactly_with_more_workers_and_more_hosts(make_config, monkeypatch):
    """LDR-10: 10 steps of 200 rows, killed, then two workers and two hosts."""
    monkeypatch.setattr(pipeline, "_BLOCK_POSITIONS", 16)
    config = make_config({"a": rows(200)}, seq_len=2, batch_size=8, num_workers=0)
    one = Loader(config, seed=0)
    uninterrupted = list(one.iterate(0, 16))
    assert_same_stream(itertools.islice(one.iterate(0, 100), 10), one, range(10))  # and then killed
    more = Loader(DataConfig(sources=config.sources, seq_len=2, batch_size=8, num_workers=2), 0)
    hosts = [list(more.iterate(10, 16, half)) for half in (slice(0, 4), slice(4, 8))]
    for step in range(10, 16):
        joined = [
            np.concatenate(arrays) for arrays in zip(*(h[step - 10] for h in hosts), strict=True)
        ]
        for one_array, other in zip(uninterrupted[step], joined, strict=True):
            assert np.array_equal(one_array, other)


def test_batches_are_made_ahead_in_another_thread(make_loader, monkeypatch):
    monkeypatch.setattr(pipeline, "_BLOCK_POSITIONS", 1)
    loader = make_loader(rows(200), batch_size=4, prefetch=3)
    made = []

    class Watched:
        config, batch_size = loader.config, staticmethod(loader.batch_size)

        def block(self, *arguments):
            made.append(arguments[0])
            return loader.block(*arguments)

    batches = pipeline.iterate(Watched(), 0, 20, slice(None))
    next(batches)
    deadline = time.monotonic() + 30
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(made) == [0, 1, 2, 3]  # one taken, three ahead, no more
    batches.close()


def test_error_while_making_a_batch_reaches_the_loop(make_loader):
    loader = make_loader(rows(200), batch_size=4)
    store = loader.sources[0].store
    os.truncate(os.path.join(store.path, store.metadata.parts[0].path("tokens")), 0)
    with pytest.raises((ValueError, OSError)):
        list(loader.iterate(0, 4))


class Outer(NamedTuple):
    inner: Batch
    extra: np.ndarray


class Nested:
    """Makes batches within batches within batches."""

    def __init__(self, loader):
        self._loader, self.config, self.batch_size = loader, loader.config, loader.batch_size

    def block(self, start, stop, rows=None):
        batch = self._loader.block(start, stop, rows)
        return Outer(batch, Outer(batch, batch.inputs[:, :1, None] + np.zeros((2, 3))))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_may_hold_batches(make_loader, num_workers):
    maker = Nested(make_loader(rows(40), batch_size=3, num_workers=num_workers))
    batches = list(pipeline.iterate(maker, 0, 5, slice(None)))
    assert len(batches) == 5
    for step, batch in enumerate(batches):
        expected = maker.block(step, step + 1)
        assert (type(batch), type(batch.extra), type(batch.extra.inner)) == (Outer, Outer, Batch)
        for one, other in (
            *zip(batch.inner, expected.inner, strict=True),
            (batch.extra.extra, expected.extra.extra),
        ):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
