import math

import pytest

from jaxtrain.corpus.documents import PART_OF, Document
from jaxtrain.corpus.split import HELDOUT, TRAIN, is_held_out, split


def _documents(num):
    return [Document(f"folder/file_{i}.py", f"text {i}", "s", {}) for i in range(num)]


def _sides(documents, heldout_frac):
    """{output: ids}, and the ids of what is dropped."""
    outcomes, outputs = split(documents, heldout_frac)
    assert [outcome.document for outcome in outcomes] == list(documents)
    kept = [outcome.document.id for outcome in outcomes if outcome.dropped is None]
    sides = {TRAIN: set(), HELDOUT: set()}
    for identity, output in zip(kept, outputs, strict=True):
        sides[output].add(identity)
    return sides, [outcome.document.id for outcome in outcomes if outcome.dropped is not None]


def test_held_out_share_is_the_fraction_asked_for():
    num, frac = 20_000, 0.05
    held_out = sum(is_held_out(document, frac) for document in _documents(num))
    assert abs(held_out - num * frac) < 4 * math.sqrt(num * frac * (1 - frac))  # binomial, 4 sigma


def test_decision_does_not_depend_on_order_neighbours_or_text():
    documents = _documents(300)
    alone = {d.id for d in documents if is_held_out(d._replace(text="another"), 0.2)}
    for order in (documents, documents[::-1], documents[::3]):
        assert _sides(order, 0.2)[0][HELDOUT] == alone & {d.id for d in order}


def test_larger_fraction_only_adds_to_what_is_held_out():
    documents = _documents(1000)
    small = {d.id for d in documents if is_held_out(d, 0.1)}
    large = {d.id for d in documents if is_held_out(d, 0.3)}
    assert small < large


def test_fraction_of_zero_holds_out_nothing():
    assert _sides(_documents(1000), 0.0)[0][HELDOUT] == set()


@pytest.mark.parametrize("heldout_frac", [0.1, 0.9])
def test_parts_never_are_on_the_other_side_of_their_whole(heldout_frac):
    documents = []
    for whole in _documents(100):
        documents += [
            whole,
            whole._replace(id=f"{whole.id}#L1:module", metadata={PART_OF: whole.id}),
        ]
    sides, dropped = _sides(documents, heldout_frac)
    assert not {i.partition("#")[0] for i in sides[TRAIN]} & sides[HELDOUT]
    assert not any("#" in i for i in sides[HELDOUT])
    assert dropped == [f"{d.id}#L1:module" for d in documents if d.id in sides[HELDOUT]]
