from dataclasses import replace

import numpy as np
import pytest

from jaxtrain.data.documents import (
    Document,
    check_group,
    file_contents,
    num_masked_targets,
)
from jaxtrain.data.metadata import StoreError

MASK = np.array([0, 1, 1], bool)


def document(**fields):
    empty = {"mask": None, "value": None, "joins": False, "labels": None, "weights": None}
    given = {"ids": np.array([1, 2, 3]), "document_id": "d", "source": "file:7"}
    return Document(**(given | {"num_text_bytes": 3} | empty | fields))


@pytest.fixture
def of_kind(tokenization):
    return lambda kind: replace(tokenization, settings={"answers": kind} if kind else {})


@pytest.mark.parametrize(
    ("kind", "fields", "fault"),
    [
        (None, {"ids": np.array([300])}, "has token id 300, but the vocabulary has 300"),
        (None, {"ids": np.array([-1])}, "has token id -1"),
        (None, {"ids": np.array([0.5])}, "has float64 ids, not integers"),
        (None, {"mask": MASK[:2]}, "has 3 ids and a mask of 2"),
        (None, {"weights": np.ones(4)}, "has 3 ids and weights of 4"),
        (None, {"mask": MASK, "weights": np.ones(3)}, "has a mask and weights"),
        (None, {"weights": np.array([1, -0.5, 1])}, "has a weight of -0.5; they are finite"),
        (None, {"weights": np.array([1, np.nan, 1])}, "has a weight of nan"),
        (None, {"value": 1.0}, "the store is of no answers"),
        (None, {"joins": True}, "the store is of no answers"),
        (None, {"labels": MASK, "mask": MASK}, "the store is of no answers"),
        ("pairs", {"value": np.inf}, "has the value inf, which is not finite"),
        ("pairs", {"weights": np.ones(3)}, "answers of kind 'pairs' are judged whole"),
        ("pairs", {"labels": MASK, "mask": MASK}, "has labels, which answers of kind 'pairs'"),
        ("pairs", {"mask": np.array([1, 0, 0])}, "has no answer: no token of it is trained"),
        ("ranks", {"ids": np.array([], int)}, "has no answer"),
        ("steps", {"mask": MASK}, "is judged by steps, so that it needs a mask"),
        ("steps", {"labels": MASK}, "is judged by steps, so that it needs a mask"),
        ("steps", {"labels": MASK, "mask": ~MASK & MASK}, "has no step"),
        ("steps", {"labels": np.array([0, 2, 0]), "mask": MASK}, "labels other than 0 and 1"),
    ],
)
def test_each_fault_names_the_document_and_what_is_wrong(of_kind, kind, fields, fault):
    with pytest.raises(StoreError) as error:
        document(**fields).check(of_kind(kind))
    assert str(error.value).startswith("file:7: document 'd' ")
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (None, {}),
        (None, {"ids": np.array([], int)}),
        (None, {"weights": np.array([0, 0.5, 2])}),
        ("pairs", {"mask": MASK, "value": 0.5}),
        ("labels", {"value": -1.0, "joins": True}),
        ("steps", {"mask": MASK, "labels": np.array([0, 0, 1])}),
    ],
)
def test_what_a_store_can_have_passes(of_kind, kind, fields):
    document(**fields).check(of_kind(kind))


def test_a_wrong_group_is_named_by_its_first_document():
    with pytest.raises(StoreError, match=r"file:7: document 'd': a pair has .* this group has 1"):
        check_group("pairs", [document()])


def test_stored_copy_does_not_follow_the_array_it_was_made_of():
    mask, ids = MASK.copy(), np.array([1, 2, 3])
    stored = document(mask=mask, ids=ids).stored(np.dtype("<u2"))
    mask[:] = False
    ids[:] = 0
    assert stored.mask.tolist() == [0, 1, 1]
    assert (stored.ids.tolist(), stored.ids.dtype) == ([1, 2, 3], np.dtype("<u2"))


def test_only_files_with_something_to_say_are_made():
    def kinds(*documents):
        return set(file_contents(documents)) - {"tokens", "ends", "names"}

    assert kinds(document(), document()) == set()
    assert kinds(document(value=0.0)) == set()
    assert kinds(document(mask=MASK), document()) == {"mask"}
    assert kinds(document(mask=MASK), document(weights=np.ones(3))) == {"weights"}
    assert kinds(document(value=1.0), document(joins=True)) == {"groups", "values"}
    assert kinds(document(mask=MASK, labels=MASK)) == {"mask", "labels"}


def test_targets_of_a_part_leave_out_first_tokens_but_not_of_steps():
    masked = document(mask=np.array([1, 0, 1]))
    weighted = document(weights=np.array([1, 0.5, 0]))
    assert num_masked_targets([document()], None) is None
    assert num_masked_targets([masked, document()], "pairs") == 1 + 2
    assert num_masked_targets([masked, weighted], None) == 1 + 1
    assert num_masked_targets([masked], "steps") == 2
