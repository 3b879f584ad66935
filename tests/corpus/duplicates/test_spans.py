import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.duplicates.spans import (
    LINES,
    PARAGRAPHS,
    SENTENCES,
    WIDTHS,
    find_spans,
    has_piece,
    split_pieces,
    without_repeats,
)


@given(st.text(st.sampled_from('ab \n\t.!?。")\u2028\r…'), max_size=40), st.sampled_from([*WIDTHS]))
def test_pieces_are_the_text(text, unit):
    assert "".join(split_pieces(text, unit)) == text


def test_lines_break_at_line_feeds_only():
    assert split_pieces("a\nb\u2028c\n\nd", LINES) == ["a\n", "b\u2028c\n", "\n", "d"]


def test_paragraphs_break_at_blank_lines():
    assert split_pieces("a\nb\n \t\n\nc\n", PARAGRAPHS) == ["a\nb\n \t\n\n", "c\n"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ('He said "no." Then 3.14 rose?! Yes', ['He said "no." ', "Then 3.14 rose?! ", "Yes"]),
        ("他来了。“走吧！”她说", ["他来了。", "“走吧！”", "她说"]),
        ("a heading\n\nIt is one. www.a.b too", ["a heading\n\n", "It is one. ", "www.a.b too"]),
        ("क है। ख है", ["क है। ", "ख है"]),
    ],
)
def test_sentences_break_after_their_marks(text, pieces):
    assert split_pieces(text, SENTENCES) == pieces


def test_spans_are_three_sentences_in_a_row():
    four = find_spans("One is. Two is. Three is. Four is.", SENTENCES, 1)
    assert four.positions.tolist() == [0, 1]
    assert len(find_spans("One is. Two is.", SENTENCES, 1).positions) == 0
    (inner,) = find_spans("TWO is.  Three\tis. Four is.", SENTENCES, 1).hashes.tolist()
    assert inner == four.hashes[1].tolist()


def test_positions_are_counted_without_blank_pieces():
    assert find_spans("\n\na\n\nb\n", LINES, 1).positions.tolist() == [0, 1]


def test_short_spans_do_not_count():
    assert find_spans("abcd\nab  c\nabcde", LINES, 5).positions.tolist() == [2]
    assert find_spans("人人\nab", LINES, 5).positions.tolist() == [0]  # six bytes
    assert has_piece("ab\nabcde", LINES, 5)
    assert not has_piece("ab\nab  c", LINES, 5)


def _cut(text, unit, repeated, firsts=()):
    return without_repeats(text, unit, np.array(repeated, int), np.array(firsts, int))


def test_repeats_go_and_the_rest_stays_as_it_is():
    assert _cut("  a\n\nb \n\tc\n", LINES, [1]) == ("  a\n\n\tc\n", 1)
    assert _cut("a\nb\nc", LINES, [2]) == ("a\nb", 1)
    assert _cut("a\nb\n", LINES, []) == ("a\nb\n", 0)
    assert _cut("a\n\nb\n\nc", PARAGRAPHS, [0, 1]) == ("c", 2)


def test_all_sentences_of_a_repeated_span_go_but_those_of_one_that_stays():
    text = "A. B. C. D. E."
    assert _cut(text, SENTENCES, [1]) == ("A. E.", 3)
    assert _cut(text, SENTENCES, [1, 2]) == ("A.", 4)
    assert _cut(text, SENTENCES, [1], [0]) == ("A. B. C. E.", 1)
