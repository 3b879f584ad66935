import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data.packing import make_plan

PACKINGS = ("concat", "concat_isolated", "best_fit")
LENGTHS = st.lists(st.integers(0, 40), max_size=30)


def plan_of(packing, lengths, seq_len):
    return make_plan(packing, np.cumsum(np.array(lengths, np.int64)), seq_len)


def rows_of(plan, rows=None):
    """Per row the pieces (start, length, continues), through the public interface."""
    rows = np.arange(plan.num_rows) if rows is None else np.asarray(rows, np.int64)
    found = [[] for _ in rows]
    for row, start, length, continues in zip(*plan.pieces(rows), strict=True):
        found[row].append((int(start), int(length), bool(continues)))
    return found


@pytest.mark.parametrize("packing", PACKINGS)
@given(LENGTHS, st.integers(1, 17))
def test_every_token_is_an_input_exactly_once(packing, lengths, seq_len):
    plan = plan_of(packing, lengths, seq_len)
    seen = collections.Counter()
    for row in rows_of(plan):
        assert row  # no row is only filler
        assert sum(length for _, length, _ in row) <= seq_len
        for start, length, _ in row:
            assert length > 0
            seen.update(range(start, start + length))
    assert seen == collections.Counter(range(sum(lengths)))


@pytest.mark.parametrize("packing", PACKINGS)
@given(LENGTHS, st.integers(1, 17))
def test_ledger_agrees_with_a_count_of_the_rows(packing, lengths, seq_len):
    plan = plan_of(packing, lengths, seq_len)
    ledger = plan.ledger()
    rows = rows_of(plan)
    ends = np.cumsum(lengths)
    in_rows = collections.defaultdict(set)
    for number, row in enumerate(rows):
        for start, length, _ in row:
            for token in range(start, start + length):
                in_rows[int(np.searchsorted(ends, token, side="right"))].add(number)
    targets = sum(length - 1 + continues for row in rows for _, length, continues in row)
    assert ledger.tokens_in == ledger.tokens_out == sum(lengths)
    assert ledger.tokens_dropped == 0
    assert ledger.num_rows == len(rows)
    assert ledger.num_documents == len(lengths)
    assert ledger.num_cut_documents == sum(len(where) > 1 for where in in_rows.values())
    assert ledger.max_segments == max(map(len, rows), default=0)
    assert ledger.num_targets == targets
    assert ledger.utilisation == sum(lengths) / max(len(rows) * seq_len, 1)


@pytest.mark.parametrize("packing", ["concat_isolated", "best_fit"])
@given(LENGTHS, st.integers(1, 17))
def test_isolated_pieces_lie_in_one_document_and_know_whether_it_goes_on(packing, lengths, seq_len):
    ends = np.cumsum(lengths)
    for row in rows_of(plan_of(packing, lengths, seq_len)):
        for number, (start, length, continues) in enumerate(row):
            end = ends[np.searchsorted(ends, start, side="right")]
            assert start + length <= end
            assert continues == (start + length < end)
            if continues:  # then the row is full, so that its next token is one column further
                assert number == len(row) - 1
                assert sum(piece[1] for piece in row) == seq_len


@pytest.mark.parametrize("packing", PACKINGS)
@given(LENGTHS, st.integers(1, 17), st.data())
def test_rows_asked_for_in_any_order_are_the_same_rows(packing, lengths, seq_len, data):
    plan = plan_of(packing, lengths, seq_len)
    everything = rows_of(plan)
    if everything:
        wanted = data.draw(st.lists(st.integers(0, len(everything) - 1), max_size=8))
        assert rows_of(plan, wanted) == [everything[row] for row in wanted]


def naive_best_fit_decreasing(lengths, capacity):
    """One item at a time into the bin with the least sufficient room; returns the bins' loads."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [(room, i) for i, room in enumerate(rooms) if room >= length]
        if fitting:
            _, best = min(fitting)
        else:
            best = len(rooms)
            rooms.append(capacity)
        rooms[best] -= length
    return sorted(capacity - room for room in rooms)


@given(st.lists(st.integers(1, 50), max_size=80), st.integers(1, 30))
def test_best_fit_is_best_fit_decreasing_done_one_by_one(lengths, seq_len):
    pieces = [seq_len] * sum(n // seq_len for n in lengths)
    pieces += [n % seq_len for n in lengths if n % seq_len]
    rows = rows_of(plan_of("best_fit", lengths, seq_len))
    # Bins with equal room are interchangeable, so the loads are unique and the contents are not.
    assert sorted(sum(length for _, length, _ in row) for row in rows) == naive_best_fit_decreasing(
        pieces, seq_len
    )


def test_best_fit_splits_what_exceeds_a_row_and_keeps_the_rest():
    """LDR-04: documents of 6, 3, 2, 1 and 1 tokens in rows of 4: 13 in 4 rows, none dropped."""
    plan = plan_of("best_fit", [6, 3, 2, 1, 1], 4)
    rows = rows_of(plan)
    assert rows[0] == [(0, 4, True)]
    assert sorted(start for row in rows for start, _, _ in row) == [0, 4, 6, 9, 11, 12]
    assert next(row for row in rows if (4, 2, False) in row) == [(4, 2, False), (9, 2, False)]
    assert len(rows) == 4
    assert plan.ledger().tokens_dropped == 0
    assert plan.ledger().num_cut_documents == 1


def test_best_fit_fills_rows_far_better_than_one_document_each():
    lengths = np.random.default_rng(0).lognormal(4, 1, 20_000).astype(int).clip(1)
    ledger = plan_of("best_fit", lengths, 512).ledger()
    assert ledger.tokens_out == lengths.sum()
    # No packing can need fewer rows than this; best-fit decreasing is within 1 % of it here.
    assert ledger.num_rows <= 1.01 * np.ceil(lengths.sum() / 512)


def test_concat_counts_what_is_known_in_closed_form():
    plan = plan_of("concat", [5, 0, 9, 3], 4)
    ledger = plan.ledger()
    assert (ledger.num_rows, ledger.num_targets, ledger.max_segments) == (5, 16, 1)
    assert ledger.num_cut_documents == 3  # 0–4, 5–13 and 14–16 over cuts at 4, 8, 12 and 16
    assert ledger.utilisation == 17 / 20
    assert rows_of(plan)[-1] == [(16, 1, False)]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_nothing_packs_into_no_rows(packing, lengths):
    plan = plan_of(packing, lengths, 4)
    assert plan.num_rows == 0
    assert rows_of(plan) == []
    assert plan.ledger().utilisation == 0
