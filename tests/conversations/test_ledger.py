"""Every row is counted once, and too many bad ones are an error that names the first."""

import numpy as np
import pytest

from jaxtrain.conversations.examples import Example
from jaxtrain.conversations.forms import BadRow, Dropped
from jaxtrain.conversations.ledger import Ledger
from jaxtrain.conversations.rows import Row


def example(num_tokens, num_trained, cut=None):
    mask = np.arange(num_tokens) >= num_tokens - num_trained
    return Example(np.zeros(num_tokens, np.uint32), mask, (None,) * num_tokens, 9, cut)


def filled(max_bad_frac=0.5):
    ledger = Ledger(max_bad_frac, "letters")
    ledger.rows_in = 5
    ledger.take([example(10, 4), example(6, 2, "turns"), example(6, 2, "turns")])
    ledger.take([example(8, 8)])
    ledger.leave_out(BadRow("odd", "has no key"), Row("a:3", {}))
    ledger.leave_out(BadRow("odd", "has no key either"), Row("a:4", {}))
    ledger.leave_out(Dropped("too long"), Row("a:5", {}))
    return ledger


def test_rows_in_are_rows_out_and_dropped_and_tokens_those_of_all_examples():
    ledger = filled()
    ledger.check(done=True)
    assert ledger.plain() == {
        "rows_in": 5,
        "rows_out": 2,
        "dropped": {"odd": 2, "too long": 1},
        "first": {"odd": "a:3: has no key", "too long": "a:5: too long"},
        "cut": {"turns": 1},
        "tokens": 30,
        "trained_tokens": 16,
    }
    assert list(ledger.lines()) == [
        "5 rows in = 2 out + 3 dropped",
        "  dropped: 2 odd, first a:3: has no key",
        "  dropped: 1 too long, first a:5: too long",
        "  too long, cut by turns: 1",
        "16 of 30 tokens trained (53.3%)",
    ]


def test_a_lost_row_is_noticed():
    ledger = filled()
    ledger.rows_in += 1
    with pytest.raises(AssertionError):
        ledger.check(done=True)


def test_too_many_bad_rows_are_an_error_at_the_end_or_after_a_thousand():
    ledger = filled(0.39)
    ledger.check(done=False)
    with pytest.raises(ValueError, match=r"2 of 5 rows are no letters, .*; odd, first a:3: has no"):
        ledger.check(done=True)
    many = filled(0.001)
    many.rows_in = 1000
    with pytest.raises(ValueError, match="2 of 1,000 rows are no letters"):
        many.check(done=False)
