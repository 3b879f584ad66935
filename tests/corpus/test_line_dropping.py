from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.line_dropping import drop_lines


def rule_of(line):
    return {"x": "is x", "y": "is y"}.get(line)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nx\nb", "a\nb"),
        ("x\na", "a"),
        ("a\nx", "a"),
        (" a \n x \n\tb", " a \n\tb"),
        ("a\n\nx\n\nb", "a\n\nb"),
        ("x\n\na\n\nx", "a"),
        ("a\n\n\nb\nx", "a\n\n\nb"),
        ("a\n\nx\nb", "a\n\nb"),
        ("x\ny", ""),
        ("a\u2028x\nx", "a\u2028x"),
    ],
)
def test_lines_go_with_the_blank_line_that_their_removal_would_double(text, expected):
    assert drop_lines(text, rule_of)[0] == expected


def test_removed_lines_are_counted_by_rule():
    assert drop_lines("x\na\ny\nx", rule_of)[1] == Counter({"is x": 2, "is y": 1})


@given(st.text(st.sampled_from("abxy \n"), max_size=20))
def test_only_lines_with_a_rule_and_blank_lines_ever_go(text):
    cleaned, dropped = drop_lines(text, rule_of)
    before = [line for line in text.split("\n") if line.strip()]
    after = [line for line in cleaned.split("\n") if line.strip()]
    assert after == [line for line in before if rule_of(line.strip()) is None]
    assert dropped.total() == len(before) - len(after)
    assert dropped or cleaned == text
    assert drop_lines(cleaned, rule_of) == (cleaned, Counter())
