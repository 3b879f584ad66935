import pytest

from jaxtrain.data.answers import KINDS, fault_of_group

GOOD = {
    "pairs": [[0.0, 0.0], [1.5, 0.0], [-1.0, 0.0]],
    "ranks": [[0.0, 0.0], [3.0, 2.0, 2.5], [1.0, 0.5, 0.0, 0.0]],
    "labels": [[1.0], [-1.0], [1.0, -1.0, 0.0, 0.0], [1.0, 0.0]],
    "steps": [[0.0], [2.0]],
}


@pytest.mark.parametrize("kind", KINDS)
def test_groups_as_described_have_no_fault(kind):
    assert [fault_of_group(kind, values) for values in GOOD[kind]] == [None] * len(GOOD[kind])


@pytest.mark.parametrize(
    ("kind", "values", "fault"),
    [
        ("pairs", [0.0], "a pair has a chosen and a rejected answer, and this group has 1"),
        ("pairs", [0.0, 0.0, 0.0], "and this group has 3"),
        ("pairs", [0.0, 0.5], "the rejected answer of a pair has no value, and this one has 0.5"),
        ("ranks", [1.0], "two or more answers, and this group has 1"),
        ("labels", [1.0, -1.0, 0.0], "as many mismatched answers as judged ones"),
        ("labels", [0.0], "judged answers have the value 1 or -1"),
        ("labels", [1.0, 0.5, 0.0, 0.0], "judged answers have the value 1 or -1"),
        ("labels", [1.0, -1.0, 0.0, 1.0], "mismatched answers have the value 0"),
        ("steps", [0.0, 0.0], "a group of its own, and this group has 2"),
    ],
)
def test_each_fault_of_a_group_is_said(kind, values, fault):
    assert fault in str(fault_of_group(kind, values))
