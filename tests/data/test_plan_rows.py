import itertools

import numpy as np
import pytest

from jaxtrain.data.config import DataConfig
from jaxtrain.data.plan_rows import answer_rows, plan_rows
from jaxtrain.data.sources import Source
from jaxtrain.data.store import Store
from tests.data.naive_answers import make_groups

LENGTHS = [(3, 4), (2, 2), (5, 3), (9, 9), (2, 6), (7, 7), (4, 4)]


@pytest.fixture
def source(write_answers, tmp_path):
    path = write_answers(tmp_path / "store", "pairs", make_groups("pairs", LENGTHS), part_tokens=30)
    config = DataConfig(seq_len=20, packing="best_fit")
    return Source("a", Store(path), config, 0)


@pytest.fixture
def plain(make_store, numbered_documents):
    path = make_store(numbered_documents([5, 1, 9, 0, 3, 12, 7]))
    return Source("a", Store(path), DataConfig(seq_len=6, packing="concat_isolated"), 0)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_every_answer_is_walked_once_and_found_by_its_number(source, batch_size):
    """What is computed per segment can be put where its document is; values show that it is."""
    values = np.full(source.store.num_documents, np.nan, np.float32)
    lengths = np.zeros(source.store.num_documents, int)
    for block in answer_rows(source, batch_size):
        assert block.batch.tokens.inputs.shape == (batch_size, 20)
        assert (block.valid == (block.batch.group_ids > 0)).all()
        assert not block.documents[~block.valid].any()
        assert np.isnan(values[block.documents[block.valid]]).all()
        values[block.documents[block.valid]] = block.batch.values[block.valid]
        for row, q in zip(*np.nonzero(block.valid), strict=True):
            where = block.batch.tokens.segment_ids[row] == q + 1
            lengths[block.documents[row, q]] = where.sum()
    np.testing.assert_array_equal(values, source.store.values)
    assert lengths.tolist() == [length for group in LENGTHS for length in group]


def test_hosts_share_the_walk(source):
    whole = list(answer_rows(source, 4))
    parts = [list(answer_rows(source, 4, slice(*cut))) for cut in ((0, 1), (1, 4))]
    for block, *hosts in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(
            np.concatenate([host.documents for host in hosts]), block.documents
        )
        np.testing.assert_array_equal(
            np.concatenate([host.batch.tokens.inputs for host in hosts]), block.batch.tokens.inputs
        )


def test_plain_documents_have_no_answers_to_walk(plain):
    with pytest.raises(ValueError, match="is no store of answers"):
        next(answer_rows(plain, 4))


def test_a_walk_can_begin_at_a_row(plain):
    blocks = list(plan_rows(plain, 4))
    assert [(block.first_row, block.stop_row) for block in blocks] == [(0, 4), (4, 7)]
    assert {block.shape for block in blocks} == {(4, 6)}
    again = list(plan_rows(plain, 2, first=4))
    assert [(block.first_row, block.stop_row) for block in again] == [(4, 6), (6, 7)]
    inputs = [block.batch.inputs for block in again]
    np.testing.assert_array_equal(np.concatenate(inputs), blocks[1].batch.inputs)


def test_pieces_say_which_tokens_of_the_store_lie_where(plain):
    seen = []
    for block in plan_rows(plain, 4):
        pieces = block.pieces
        places = zip(pieces.rows, pieces.columns, pieces.starts, pieces.lengths, strict=True)
        for row, column, start, length in places:
            found = block.batch.inputs[row, column : column + length]
            assert found.tolist() == list(range(start, start + length))
            seen += found.tolist()
    assert seen == list(itertools.chain(range(37)))
