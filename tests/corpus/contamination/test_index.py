import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.contamination.benchmark import Benchmark, BenchmarkItem
from jaxtrain.corpus.contamination.index import ANSWER, QUESTION, Index


def _words(first, count):
    return " ".join(f"w{number}" for number in range(first, first + count))


def _index(*items, n=13):
    return Index.build([Benchmark("b", [BenchmarkItem(item) for item in items], ("0" * 64,))], n)


def _found(index, text):
    """The (item, parts) that a text holds."""
    hits = next(index.scan([text])).hits
    return sorted(set(zip(hits.items.tolist(), hits.parts.tolist(), strict=True)))


def test_thirteen_words_in_a_row_are_found_and_twelve_are_not():
    index = _index((_words(0, 40),))
    assert _found(index, f"x {_words(5, 13)} y") == [(0, QUESTION)]
    assert _found(index, f"x {_words(5, 12)} y {_words(18, 12)}") == []


def test_parts_tell_question_answer_and_both():
    index = _index((_words(0, 20), _words(100, 20)))
    assert _found(index, _words(2, 15)) == [(0, QUESTION)]
    assert _found(index, _words(101, 15)) == [(0, ANSWER)]
    assert _found(index, _words(13, 7) + " " + _words(100, 6)) == [(0, QUESTION | ANSWER)]


@pytest.mark.parametrize(
    ("length", "found"), [(7, []), (8, [(0, QUESTION)]), (12, [(0, QUESTION)])]
)
def test_short_question_is_found_as_a_whole_from_eight_words_on(length, found):
    index = _index((_words(0, length), _words(100, 2)))
    assert _found(index, f"before {_words(0, length)} after") == found
    assert _found(index, f"before {_words(0, length - 1)} after") == []


def test_short_question_and_answer_are_found_together():
    index = _index((_words(0, 5), _words(100, 4)))
    both = f"{_words(0, 5)} {_words(100, 4)}"
    assert _found(index, both) == [(0, QUESTION | ANSWER)]
    assert _found(index, _words(0, 5)) == []


def test_form_of_a_benchmark_that_many_items_share_is_no_hit():
    form = _words(500, 14)
    few = _index(*[(f"{form} {_words(20 * item, 20)}",) for item in range(10)])
    many = _index(*[(f"{form} {_words(20 * item, 20)}",) for item in range(11)])
    assert len(_found(few, form)) == 10
    assert _found(many, form) == []
    assert _found(many, _words(20, 13)) == [(1, QUESTION)]


def test_an_item_in_two_benchmarks_is_found_in_both():
    item = [BenchmarkItem((_words(0, 20),))]
    index = Index.build([Benchmark("a", item, ()), Benchmark("b", item, ())], 13)
    assert _found(index, _words(0, 20)) == [(0, QUESTION), (1, QUESTION)]
    assert [index.place(each) for each in (0, 1)] == [("a", 0), ("b", 0)]


def test_n_grams_do_not_reach_from_one_text_into_the_next():
    index = _index((_words(0, 20),))
    scans = list(index.scan([_words(0, 10), _words(10, 10), "", _words(0, 20)]))
    assert [len(scan.hits.items) for scan in scans] == [0, 0, 0, 8]
    assert [len(scan.covered) for scan in scans] == [3, 3, 0, 13]


@given(st.lists(st.integers(0, 30), max_size=12), st.data())
def test_what_a_text_holds_does_not_depend_on_the_texts_beside_it(starts, data):
    index = _index((_words(0, 20), _words(20, 5)), (_words(10, 30),))
    texts = [_words(start, data.draw(st.integers(0, 25))) for start in starts]
    alone = [next(index.scan([text])) for text in texts]
    together = list(index.scan(texts))
    assert len(together) == len(texts)
    for one, other in zip(alone, together, strict=True):
        for left, right in zip((*one.hits, one.covered), (*other.hits, other.covered), strict=True):
            np.testing.assert_array_equal(left, right)


def test_saved_index_finds_the_same(tmp_path):
    index = _index(
        (_words(0, 20), "an answer"), (_words(50, 9),), ("短い問題文です、これだけですよ",)
    )
    index.save(tmp_path / "index.npz")
    loaded = Index.load(tmp_path / "index.npz")
    assert loaded.facts == index.facts
    for text in (_words(0, 20), _words(50, 9), "短い問題文です。これだけですよ！"):
        assert _found(loaded, text) == _found(index, text) != []


def test_index_of_items_without_words_finds_nothing():
    assert _found(_index(("",), ("!?",)), "some text") == []
