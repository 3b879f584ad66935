import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtrain.data.assemble import assemble, per_segment
from jaxtrain.data.packing import make_plan
from jaxtrain.data.store import Store

SEQ_LEN = 6
LENGTHS = [4, 1, 9, 0, 2, 17, 3, 6]


@pytest.fixture(scope="module")
def store(tmp_path_factory, write_store, numbered_documents):
    documents = numbered_documents(LENGTHS, first=1)
    return Store(write_store(tmp_path_factory.mktemp("store"), documents, part_tokens=10))


def batch_of(store, packing, seq_len=SEQ_LEN):
    plan = make_plan(packing, store.document_ends, seq_len)
    rows = np.arange(plan.num_rows)
    return assemble([(store, plan.pieces(rows))], plan.num_rows, seq_len)


def next_tokens(isolated):
    """{token: the token to predict from it}, from the documents themselves."""
    ends = list(itertools.accumulate(LENGTHS, initial=0))
    followers = {}
    for first, end in itertools.pairwise(ends):
        for token in range(first + 1, end + 1):
            followers[token] = token + 1
        if end > first and (isolated or end == ends[-1]):
            del followers[end]
    return followers


@pytest.mark.parametrize("packing", ["concat", "concat_isolated", "best_fit"])
def test_token_after_each_input_is_its_target_even_across_a_cut(store, packing):
    batch = batch_of(store, packing)
    trained = batch.loss_weights > 0
    pairs = zip(batch.inputs[trained].tolist(), batch.targets[trained].tolist(), strict=True)
    assert dict(pairs) == next_tokens(isolated=packing != "concat")


@pytest.mark.parametrize("packing", ["concat", "concat_isolated", "best_fit"])
def test_every_token_is_the_input_of_one_position(store, packing):
    batch = batch_of(store, packing)
    assert sorted(batch.inputs[batch.segment_ids > 0]) == list(range(1, sum(LENGTHS) + 1))


@pytest.mark.parametrize("packing", ["concat_isolated", "best_fit"])
def test_segments_are_documents_with_restarting_positions(store, packing):
    batch = batch_of(store, packing)
    ends = np.cumsum(LENGTHS)
    for inputs, positions, segment_ids in zip(
        batch.inputs, batch.positions, batch.segment_ids, strict=True
    ):
        real = segment_ids > 0
        assert (np.diff(segment_ids[real]) >= 0).all()
        assert sorted(set(segment_ids[real])) == list(range(1, segment_ids.max() + 1))
        for segment in set(segment_ids[real]):
            mine = segment_ids == segment
            assert positions[mine].tolist() == list(range(mine.sum()))
            documents = np.searchsorted(ends, inputs[mine] - 1, side="right")
            assert len(set(documents)) == 1
            assert np.ptp(inputs[mine]) == mine.sum() - 1


def test_concat_rows_are_one_segment_with_running_positions(store):
    batch = batch_of(store, "concat")
    real = batch.segment_ids > 0
    assert np.array_equal(np.unique(batch.segment_ids), [1])
    assert np.array_equal(
        batch.positions[real], np.tile(np.arange(SEQ_LEN), len(real))[real.ravel()]
    )


def test_filler_is_segment_0_at_the_end_of_the_row_and_counts_nothing(store):
    batch = batch_of(store, "concat", seq_len=32)  # 42 tokens: 22 positions are left over
    filler = batch.segment_ids == 0
    assert filler.sum() == 22
    assert filler[1, 10:].all()
    assert not batch.loss_weights[filler].any()
    assert not batch.inputs[filler].any()


def test_rows_without_pieces_are_filler(store):
    plan = make_plan("concat", store.document_ends, SEQ_LEN)
    pieces = plan.pieces(np.array([1]))
    batch = assemble([(store, pieces._replace(rows=pieces.rows + 2))], 4, SEQ_LEN)
    assert (batch.segment_ids > 0).any(axis=1).tolist() == [False, False, True, False]
    assert batch.loss_weights[[0, 1, 3]].sum() == 0
    empty = assemble([], 2, SEQ_LEN)
    assert all(array.shape == (2, SEQ_LEN) for array in empty)
    assert not empty.segment_ids.any()


def test_rows_of_several_stores_interleave(store, make_store):
    other = Store(make_store([[200 + i for i in range(12)]]))
    pieces = [
        make_plan("concat", each.document_ends, SEQ_LEN).pieces(np.array([0, 1]))
        for each in (store, other)
    ]
    placed = [p._replace(rows=2 * p.rows + i) for i, p in enumerate(pieces)]
    batch = assemble(list(zip([store, other], placed, strict=True)), 4, SEQ_LEN)
    assert batch.inputs[:, 0].tolist() == [1, 200, 7, 206]
    assert batch.targets[:, -1].tolist() == [7, 206, 13, 0]
    assert batch.loss_weights.sum(axis=1).tolist() == [6, 6, 6, 5]


def test_batch_has_the_promised_types(store):
    batch = batch_of(store, "best_fit")
    types = [(array.dtype, array.flags.c_contiguous) for array in batch]
    i32, f32 = np.dtype(np.int32), np.dtype(np.float32)
    assert types == [(i32, True), (i32, True), (f32, True), (i32, True), (i32, True)]


def test_64_documents_in_one_row_are_64_segments(make_store, numbered_documents):
    """LDR-03: more documents than some fused kernels take; the ledger says how many there are."""
    store = Store(make_store(numbered_documents([2] * 64)))
    plan = make_plan("best_fit", store.document_ends, 128)
    batch = assemble([(store, plan.pieces(np.array([0])))], 1, 128)
    assert plan.num_rows == 1
    assert plan.ledger().max_segments == 64
    assert batch.segment_ids[0].tolist() == np.repeat(np.arange(1, 65), 2).tolist()
    assert batch.positions[0].tolist() == [0, 1] * 64
    assert batch.loss_weights[0].tolist() == [1, 0] * 64
    trained = batch.loss_weights[0] > 0
    assert (batch.targets[0] - batch.inputs[0])[trained].tolist() == [1] * 64


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    seq_len=st.integers(1, 9),
    packing=st.sampled_from(["concat", "concat_isolated", "best_fit"]),
)
def test_trained_positions_are_those_of_the_ledger(
    write_store, numbered_documents, lengths, seq_len, packing
):
    path = write_store("memory://assemble/", numbered_documents(lengths), part_tokens=7)
    store = Store(path)
    plan = make_plan(packing, store.document_ends, seq_len)
    batch = assemble([(store, plan.pieces(np.arange(plan.num_rows)))], plan.num_rows, seq_len)
    assert np.count_nonzero(batch.loss_weights) == plan.ledger().num_targets
    assert np.count_nonzero(batch.segment_ids) == plan.ledger().tokens_out


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    masks=st.lists(st.lists(st.booleans(), min_size=1, max_size=SEQ_LEN), min_size=1, max_size=12),
    packing=st.sampled_from(["concat_isolated", "best_fit"]),
)
def test_a_target_is_trained_where_its_own_mask_says(make_store, masks, packing):
    """Each token is a document's own number, so the batch can be read back without the plan."""
    ends = list(itertools.accumulate((len(mask) for mask in masks), initial=1))
    documents = [list(range(a, b)) for a, b in itertools.pairwise(ends)]
    batch = batch_of(Store(make_store(documents, masks=masks)), packing)
    trained = batch.loss_weights > 0
    pairs = zip(batch.inputs[trained].tolist(), batch.targets[trained].tolist(), strict=True)
    wanted = [
        (ids[place - 1], ids[place])
        for ids, mask in zip(documents, masks, strict=True)
        for place in range(1, len(ids))
        if mask[place]
    ]
    assert sorted(pairs) == wanted
    assert set(batch.loss_weights.ravel().tolist()) <= {0.0, 1.0}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    masks=st.lists(st.lists(st.booleans(), min_size=1, max_size=SEQ_LEN), min_size=1, max_size=12)
)
def test_trained_tokens_of_a_document_can_share_a_weight_of_one(make_store, masks):
    batch = batch_of(
        Store(make_store([[7] * len(mask) for mask in masks], masks=masks)), "best_fit"
    )
    shared = per_segment(batch)
    found = [
        shared.loss_weights[row][batch.segment_ids[row] == segment]
        for row in range(len(batch.inputs))
        for segment in range(1, batch.segment_ids[row].max() + 1)
    ]
    counts = sorted(sum(mask[1:]) for mask in masks)
    assert sorted(np.count_nonzero(weights) for weights in found) == counts
    for weights in found:
        np.testing.assert_allclose(weights * np.count_nonzero(weights), weights > 0, rtol=1e-6)
    np.testing.assert_array_equal(shared.loss_weights > 0, batch.loss_weights > 0)
