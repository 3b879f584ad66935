import math

import numpy as np

from jaxtrain.corpus.contamination.benchmark import Benchmark, BenchmarkItem
from jaxtrain.corpus.contamination.index import ANSWER, QUESTION, Index
from jaxtrain.corpus.contamination.report import Observed, coverage, report, strongest


def _words(first, count):
    return " ".join(f"w{number}" for number in range(first, first + count))


def _index():
    items = [BenchmarkItem((_words(0, 17),)), BenchmarkItem((_words(50, 7),))]
    return Index.build([Benchmark("b", items, ("h",)), Benchmark("c", items[:1], ())], 13)


def _covered(index, text):
    return next(index.scan([text])).covered


def test_coverage_is_the_share_of_eight_grams_of_all_texts_together():
    index = _index()
    texts = [_words(0, 9), _words(1, 9)]  # 8-grams 0, 1 and 1, 2 of ten
    shares = coverage(index, [_covered(index, text) for text in texts])
    assert shares[0] == shares[2] == 0.3
    assert math.isnan(shares[1])  # too short for an 8-gram


def test_question_alone_covers_an_item():
    texts = (_words(0, 20), _words(100, 60))
    index = Index.build([Benchmark("b", [BenchmarkItem(texts)], ())], 13)
    assert coverage(index, [_covered(index, texts[0])]) == [1.0]
    both = 13 + 7 + 53  # 8-grams of the question, over the seam, of the answer
    assert coverage(index, [_covered(index, texts[1])]) == [53 / both]
    assert coverage(index, [_covered(index, _words(5, 9))]) == [2 / 13]


def test_report_counts_items_and_documents_of_each_benchmark():
    index = _index()
    nothing = np.zeros(0, np.int64)
    whole = Observed(
        _covered(index, _words(0, 17)),
        nothing,
        documents=np.array([0, 0, 1]),
        items=np.array([0, 2, 0]),
        parts=np.array([QUESTION, QUESTION, ANSWER]),
    )
    held = _covered(index, _words(0, 11))
    part = Observed(held, held, nothing, nothing, nothing)
    figures = report(index, [whole, part])
    assert figures["b"]["documents"] == {
        "question with answer": 0,
        "question alone": 1,
        "answer alone": 1,
    }
    assert figures["b"]["before"] == {"dirty": 1, "clean": 0, "between": 0, "not_measured": 1}
    assert figures["b"]["after"] == {"dirty": 0, "clean": 0, "between": 1, "not_measured": 1}
    assert figures["b"]["rows"] == [{"row": 0, "before": 1.0, "after": 0.4}]
    assert figures["b"]["not_looked_for"] == 1
    assert figures["c"]["items"] == 1
    assert figures["b"]["sha256"] == ["h"]


def test_question_with_answer_weighs_more_than_a_question_and_that_than_an_answer():
    assert strongest([ANSWER, QUESTION]) == QUESTION
    assert strongest([QUESTION, QUESTION | ANSWER, ANSWER]) == QUESTION | ANSWER
    assert strongest([0, ANSWER]) == ANSWER
