import collections
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtrain.data.answers import KINDS
from jaxtrain.data.batches import BatchMaker
from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.data.sources import Source
from jaxtrain.data.store import Store
from jaxtrain.types import AnswerBatch, Batch
from tests.data.naive_answers import assert_same, group_lengths, make_groups, naive_batch

SEQ_LEN = 24


def references_of(stored, first=-0.5):
    """Per source a number for each document that tells it from all others."""
    return {
        name: first - np.arange(sum(map(len, groups)), dtype=np.float32)
        for name, groups in stored.items()
    }


def joined(parts):
    """Batches of several hosts as one."""
    tokens = Batch(*(np.concatenate(each) for each in zip(*(p.tokens for p in parts), strict=True)))
    rest = [np.concatenate(each) for each in zip(*(part[1:] for part in parts), strict=True)]
    return AnswerBatch(tokens, *rest)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.data(),
    kind=st.sampled_from(KINDS),
    batch_size=st.integers(1, 5),
    num_hosts=st.integers(1, 3),
    seed=st.integers(0, 3),
)
def test_batches_are_those_put_together_token_by_token_for_any_hosts(
    write_answers, data, kind, batch_size, num_hosts, seed
):
    """Two sources, read once; every document comes once, with its own values and reference."""
    stored = {
        name: make_groups(kind, data.draw(group_lengths(kind)), seed, first)
        for name, first in (("a", 0), ("b", 50))
    }
    sources = {
        name: SourceConfig(write_answers(f"memory://naive_{name}/", kind, groups, part_tokens=20))
        for name, groups in stored.items()
    }
    config = DataConfig(
        sources=sources,
        batch_size=batch_size,
        seq_len=SEQ_LEN,
        packing="best_fit",
        exhausted="stop",
    )
    references = references_of(stored)
    loader = Loader(config, seed, references)
    num_segments = max(source.ledger.max_segments for source in loader.sources)
    cuts = [batch_size * host // num_hosts for host in range(num_hosts + 1)]
    seen = collections.Counter()
    for step in range(loader.num_steps):
        traces = loader.trace(step)
        expected = naive_batch(
            traces, step * batch_size, batch_size, SEQ_LEN, num_segments, kind, stored, references
        )
        hosts = [loader.batch(step, slice(a, b)) for a, b in itertools.pairwise(cuts)]
        assert_same(joined(hosts), expected)
        for trace in traces:
            seen.update((trace.source, segment.document) for segment in trace.segments)
    every = ((name, n) for name, groups in stored.items() for n in range(sum(map(len, groups))))
    assert seen == collections.Counter(every)


@pytest.fixture
def make_loader(write_answers, tmp_path):
    numbers = itertools.count()

    def make(kind="pairs", lengths=((3, 4), (2, 2), (5, 3)), references=None, **config):
        path = write_answers(tmp_path / str(next(numbers)), kind, make_groups(kind, lengths))
        given = {"packing": "best_fit", "seq_len": SEQ_LEN, "batch_size": 2}
        return Loader(
            DataConfig(sources={"a": SourceConfig(path)}, **(given | config)), 0, references
        )

    return make


def test_columns_are_the_most_segments_of_any_row_and_the_rest_is_filler(make_loader):
    loader = make_loader(lengths=[(12, 12), *[(2, 2)] * 3])
    batch = loader.batch(0)
    assert batch.group_ids.shape == (2, 6)
    assert sorted(batch.group_ids.tolist()) == [[1, 1, 0, 0, 0, 0], [1, 1, 2, 2, 3, 3]]
    assert not batch.values[batch.group_ids == 0].any()


def test_without_references_the_reference_is_zero(make_loader):
    assert not make_loader().batch(0).reference.any()


def test_references_can_be_given_once_they_are_known(make_loader):
    loader = make_loader(batch_size=1)
    references = {"a": -np.arange(1, 7, dtype=np.float64)}
    later = loader.with_references(references)
    first = make_loader(batch_size=1, references=references)
    assert_same(later.batch(0), first.batch(0))
    real = later.batch(0).group_ids > 0
    assert sorted(later.batch(0).reference[real]) == [-6, -5, -4, -3, -2, -1]
    assert not loader.batch(0).reference.any()


@pytest.mark.parametrize(
    ("references", "message"),
    [
        ({"b": np.zeros(6)}, "references has none of a; give every source its own"),
        ({"a": np.zeros(5)}, r"must be 6 finite log-probabilities, one per document, not of shape"),
        ({"a": np.full(6, np.nan)}, "with NaN or infinity"),
    ],
)
def test_references_that_do_not_fit_are_refused(make_loader, references, message):
    with pytest.raises(ValueError, match=message):
        make_loader(references=references)


def test_references_for_plain_documents_are_refused(make_config):
    config = make_config({"a": [[1, 2, 3]]}, seq_len=2)
    with pytest.raises(ValueError, match="is no store of answers"):
        Loader(config, 0, {"a": np.zeros(1)})


def test_weights_of_a_store_are_those_of_the_targets(make_store):
    weights = [np.array([9, 0.5, 0, 2]), np.array([9, 0, 0.25])]
    path = make_store([[1, 2, 3, 4], [5, 6, 7]], extras=[{"weights": each} for each in weights])
    config = DataConfig(sources={"a": SourceConfig(path)}, seq_len=8, packing="best_fit")
    source = Source("a", Store(path), config, 0)
    (pieces,) = [source.plan.pieces(np.array([0]))]
    batch = BatchMaker([source], config, 0).make([(source, pieces)], np.array([0]))
    assert batch.inputs[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert batch.loss_weights[0].tolist() == [0.5, 0, 2, 0, 0, 0.25, 0, 0]
    assert source.ledger.num_targets == 3
    shared = dataclasses.replace(config, weighting="document")
    batch = BatchMaker([source], shared, 0).make([(source, pieces)], np.array([0]))
    np.testing.assert_allclose(batch.loss_weights[0], [0.2, 0, 0.8, 0, 0, 1, 0, 0], rtol=1e-6)


def test_steps_are_judged_where_they_end_and_weigh_one_each(make_loader):
    loader = make_loader("steps", [(5,), (2,), (3,)], batch_size=1)
    batch = loader.batch(0)
    assert batch.tokens.loss_weights.sum() == loader.sources[0].store.num_targets
    ends = batch.tokens.loss_weights > 0
    assert set(batch.tokens.targets[ends].tolist()) <= {0, 1}
    last = np.flatnonzero(np.diff(batch.tokens.segment_ids[0]) != 0)
    assert ends[0, last].all()  # each document's last token ends a step
