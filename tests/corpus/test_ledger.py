import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.ledger import Ledger

_fates = st.lists(st.tuples(st.sampled_from(["train", "heldout", "empty", "twin"]), st.integers(0)))


def _record(fates) -> Ledger:
    ledger = Ledger()
    for fate, num_bytes in fates:
        ledger.take(num_bytes)
        record = ledger.keep if fate in ("train", "heldout") else ledger.drop
        record(fate, num_bytes)
    return ledger


@given(_fates)
def test_ledger_adds_up_when_every_document_is_accounted_for(fates):
    ledger = _record(fates)
    ledger.check()
    plain = ledger.to_plain()
    parts = [*plain["out"].values(), *plain["dropped"].values()]
    assert plain["in"] == {
        "documents": sum(part["documents"] for part in parts),
        "bytes": sum(part["bytes"] for part in parts),
    }


@given(_fates)
def test_plain_ledger_does_not_depend_on_the_order_of_events(fates):
    assert _record(fates).to_plain() == _record(reversed(fates)).to_plain()


def test_document_lost_without_a_word_is_found():
    ledger = _record([("train", 5)])
    ledger.take(3)
    with pytest.raises(AssertionError, match=r"in .*documents=2, bytes=8.*dropped .*documents=1"):
        ledger.check()


def test_document_that_changes_its_length_on_the_way_is_found():
    ledger = Ledger()
    ledger.take(5)
    ledger.keep("train", 4)
    with pytest.raises(AssertionError, match=r"bytes=5.*bytes=4"):
        ledger.check()


def test_table_names_every_reason():
    table = _record([("train", 1_000_000), ("twin", 7)]).table()
    assert "out: train" in table
    assert "dropped: twin" in table
    assert "1,000,000 bytes" in table
