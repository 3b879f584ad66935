import pytest

from jaxtrain.corpus.card_page import Page, cell, code, percent


def test_table_sets_numbers_right_and_escapes_what_would_break_it():
    page = Page()
    page.table(["rule", "n"], [["a|b\nc", 1234], ["<b>", 0.5]])
    assert page.blocks[-1].splitlines() == [
        "| rule | n |",
        "| --- | ---: |",
        "| a\\|b c | 1,234 |",
        "| \\<b> | 0.5 |",
    ]


def test_column_with_a_word_is_set_left():
    page = Page()
    page.table(["input", "licence", "share"], [["a", "CC0-1.0", "< 0.1 %"], ["b", "3", "4.5 %"]])
    assert page.blocks[-1].splitlines()[1] == "| --- | --- | ---: |"


def test_table_of_nothing_is_left_out():
    page = Page()
    page.table(["rule"], [])
    assert len(page.blocks) == 1


def test_charts_of_like_names_do_not_replace_each_other():
    page = Page()
    page.plot("a b", "one", "t")
    page.plot("a/b", "two", "t")
    assert sorted(page.plots.values()) == ["one", "two"]
    assert all(f"(card/{name})" in "".join(page.blocks) for name in page.plots)


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [(1, 3, "33.3 %"), (0, 5, "0.0 %"), (1, 10_000, "< 0.1 %"), (0, 0, ""), (5, 5, "100.0 %")],
)
def test_share_is_never_shown_as_nothing_when_it_is_something(part, whole, shown):
    assert percent(part, whole) == shown


def test_names_keep_their_underscores_and_emphasis_is_escaped():
    assert cell("drop_near_duplicates") == "drop_near_duplicates"
    assert cell("__init__ *x*") == "\\_\\_init\\_\\_ \\*x\\*"
    assert cell(True) == "true"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "`a b`"), ("a `b`", "`` a `b` ``"), ("x" * 200, "`" + "x" * 120 + "…`")],
)
def test_excerpt_is_code_on_one_line(text, shown):
    assert code(text) == shown
