import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data.groups import GroupPlan
from jaxtrain.data.packing import make_plan

#: Groups of documents, by their lengths; a group has at most 15 tokens.
GROUPS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), max_size=20)
SEQ_LENS = st.integers(15, 40)


def plan_of(groups, seq_len):
    lengths = np.array([length for group in groups for length in group], np.int64)
    sizes = np.array([len(group) for group in groups], np.int64)
    return GroupPlan(np.cumsum(lengths), np.cumsum(sizes), seq_len)


def rows_of(plan, groups, rows=None):
    """Per row the numbers of its documents, from the pieces alone."""
    ends = np.cumsum([length for group in groups for length in group])
    spans = zip(ends, lengths(groups), strict=True)
    documents = {(int(end - length), length): i for i, (end, length) in enumerate(spans)}
    rows = np.arange(plan.num_rows) if rows is None else np.asarray(rows, np.int64)
    found = [[] for _ in rows]
    pieces = plan.pieces(rows)
    assert not pieces.continues.any()
    for row, start, length in zip(pieces.rows, pieces.starts, pieces.lengths, strict=True):
        found[row].append(documents[int(start), int(length)])  # a whole document, or KeyError
    return found


def lengths(groups):
    return [length for group in groups for length in group]


@given(GROUPS, SEQ_LENS)
def test_each_document_is_whole_in_one_row_once_in_an_epoch(groups, seq_len):
    rows = rows_of(plan_of(groups, seq_len), groups)
    seen = collections.Counter(document for row in rows for document in row)
    assert seen == collections.Counter(range(len(lengths(groups))))
    assert all(sum(lengths(groups)[each] for each in row) <= seq_len for row in rows)


@given(GROUPS, SEQ_LENS)
def test_groups_are_never_divided_and_keep_their_order(groups, seq_len):
    members, first = {}, 0
    for group in groups:
        members[first] = list(range(first, first + len(group)))
        first += len(group)
    for row in rows_of(plan_of(groups, seq_len), groups):
        while row:
            expected = members[row[0]]  # a row continues with the first document of some group
            assert row[: len(expected)] == expected
            row = row[len(expected) :]


@given(GROUPS, SEQ_LENS)
def test_groups_are_packed_as_documents_of_their_length_are(groups, seq_len):
    """By the packer of plain documents, whose loads a test of its own checks one by one."""
    whole = make_plan("best_fit", np.cumsum([sum(group) for group in groups], dtype=int), seq_len)
    assert plan_of(groups, seq_len).num_rows == whole.num_rows


@given(GROUPS, SEQ_LENS)
def test_ledger_agrees_with_a_count_of_the_rows(groups, seq_len):
    plan = plan_of(groups, seq_len)
    rows, ledger = rows_of(plan, groups), plan.ledger()
    assert ledger.num_documents == len(lengths(groups))
    assert ledger.tokens_in == ledger.tokens_out == sum(lengths(groups))
    assert ledger.num_targets == sum(length - 1 for length in lengths(groups))
    assert ledger.max_segments == max(map(len, rows), default=0)
    assert ledger.num_cut_documents == 0
    assert ledger.num_rows == len(rows)


@given(GROUPS, SEQ_LENS, st.data())
def test_rows_asked_for_in_any_order_are_the_same_rows(groups, seq_len, data):
    plan = plan_of(groups, seq_len)
    everything = rows_of(plan, groups)
    if everything:
        wanted = data.draw(st.lists(st.integers(0, len(everything) - 1), max_size=8))
        assert rows_of(plan, groups, wanted) == [everything[row] for row in wanted]


def test_a_group_over_a_row_is_counted_with_all_its_documents():
    plan = plan_of([[3, 2], [4, 7], [2]], 8)
    assert plan.ledger().num_cut_documents == 2
    with pytest.raises(AssertionError, match="longer than a row"):
        plan.pieces(np.arange(plan.num_rows))
