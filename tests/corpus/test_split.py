import math

import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.ledger import Ledger
from jaxtrain.corpus.split import HELDOUT, TRAIN, is_held_out, split


def _documents(num):
    return [Document(f"folder/file_{i}.py", f"text {i}", "s", {}) for i in range(num)]


def test_held_out_share_is_the_fraction_asked_for():
    num, frac = 20_000, 0.05
    held_out = sum(is_held_out(document, frac) for document in _documents(num))
    assert abs(held_out - num * frac) < 4 * math.sqrt(num * frac * (1 - frac))  # binomial, 4 sigma


def test_decision_does_not_depend_on_order_neighbours_or_text():
    documents = _documents(300)
    alone = {d.id: is_held_out(d._replace(text="another"), 0.2) for d in documents}
    for order in (documents, documents[::-1], documents[::3]):
        assert {d.id: name == HELDOUT for name, d in split(order, 0.2, Ledger())} == {
            d.id: alone[d.id] for d in order
        }


def test_larger_fraction_only_adds_to_what_is_held_out():
    documents = _documents(1000)
    small = {d.id for d in documents if is_held_out(d, 0.1)}
    large = {d.id for d in documents if is_held_out(d, 0.3)}
    assert small < large


@pytest.mark.parametrize("heldout_frac", [0.1, 0.9])
def test_parts_never_are_on_the_other_side_of_their_whole(heldout_frac):
    documents = []
    for whole in _documents(100):
        documents += [whole, whole._replace(id=f"{whole.id}#L1:module")]
    ledger = Ledger()
    sides = {TRAIN: set(), HELDOUT: set()}
    for name, document in split(documents, heldout_frac, ledger):
        sides[name].add(document.id)
    assert not {i.partition("#")[0] for i in sides[TRAIN]} & sides[HELDOUT]
    assert not any("#" in i for i in sides[HELDOUT])
    dropped = ledger.to_plain()["dropped"]["part of a held-out document"]["documents"]
    assert dropped == len(sides[HELDOUT])
    assert len(sides[TRAIN]) + len(sides[HELDOUT]) + dropped == len(documents)
