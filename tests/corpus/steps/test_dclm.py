import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.steps import dclm
from tests.corpus.judging import assert_second_run_changes_nothing, judge

PROSE = "\n".join(["a line of ten words that says nothing at all"] * 12)  # 120 words


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("LOUD x", "upper-case line"), ("LOUDxxxx", "line of too few words"), ("LOUD xxx", None),
        ("ГРОМКО и", "upper-case line"), ("12345", "numeric line"), ("12 345", None),
        ("3 likes", "counter"), ("1.2k Views", "counter"), ("3 likes are few", None),
        ("like 3", None), ("word", "line of too few words"), ("两字", None),
        ("字。", "line of too few words"), ("two words", None),
        ("Sign in here", "boilerplate line"),
        ("sign-in", "line of too few words"), ("I can sign in", None),
        ("There are items in cart now", "boilerplate line"),
        ("And so on. Read more...", "boilerplate line"),
        ("Read more about it", None),
        ("one two three four five six seven eight read more", "boilerplate line"),
        ("one two three four five six seven eight nine read more", None),
    ],
)  # fmt: skip
def test_line_is_removed_by_its_rule(line, rule):
    found = judge(dclm, f"{PROSE}\n{line}\n{PROSE}", max_removed_words_frac=None)
    assert found.edits == ({rule: 1} if rule else {})
    assert found.document.text == (f"{PROSE}\n{PROSE}" if rule else f"{PROSE}\n{line}\n{PROSE}")


def test_upper_case_is_judged_at_its_threshold():
    assert judge(dclm, "ABCD efg").edits == {}  # 4 of 8
    assert judge(dclm, "ABCD ef").dropped == "no line left"  # 4 of 7


def test_page_is_dropped_above_the_share_of_removed_words():
    kept = "\n".join([*["two words"] * 46, "now three words"])
    five = "word\n3 likes\n4 likes"
    at = judge(dclm, f"{kept}\n{five}")  # 5 of 100
    assert at.dropped is None
    assert at.edits == {"counter": 2, "line of too few words": 1}
    over = judge(dclm, f"{kept}\n{five}\nword")
    assert (over.dropped, over.because) == (
        "too much removed",
        f"share of words in removed lines {6 / 101:.4g} > 0.05",
    )


def test_length_is_judged_at_its_threshold():
    line = "a line of words " * 10_000
    assert judge(dclm, line[:190_000]).dropped is None
    found = judge(dclm, line + "." * 40_000)
    assert (found.dropped, found.because) == ("too long", "characters 200000 > 190000")
    assert judge(dclm, "字" * 190_001).because == "characters 190001 > 190000"


def test_document_without_any_line_left_is_dropped():
    assert judge(dclm, "word\n\n12345").dropped == "no line left"
    assert judge(dclm, " \n").dropped == "no line left"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_removed_words_frac": 1}, "max_removed_words_frac=1: no fraction is above it"),
        ({"max_uppercase_chars_frac": 1}, "max_uppercase_chars_frac=1: no fraction"),
        ({"min_words_per_line": 1}, "min_words_per_line=1: every line has a word; give 2 or more"),
        ({"max_chars": 0}, "max_chars=0 must be above 0"),
    ],
)
def test_threshold_that_judges_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        dclm.Config(**options)


def test_rules_can_be_turned_off():
    options = {name: None for name in dclm.Config.__dataclass_fields__} | {"drop_counters": False}
    assert judge(dclm, "LOUD\n123\n3 likes\nread more", **options).edits == {}


LINES = st.sampled_from(
    ["LOUD x", "123", "3 likes", "word", "read more now", "sign in", "", " ", "字"]
)


@given(st.lists(st.just(PROSE) | LINES, max_size=8).map("\n".join))
def test_second_run_changes_nothing(text):
    assert_second_run_changes_nothing(dclm, text)
