import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates import shuffle
from jaxtrain.corpus.executors import LocalExecutor
from jaxtrain.corpus.steps.drop_repeated_spans import Config, make

PIECES = ("One is here. ", "Two is!\n", "Three? ", "\n\n", "Four is there.\n\n", "三。", "x\n")
TEXTS = st.lists(st.lists(st.sampled_from(PIECES), max_size=7).map("".join), max_size=6)
UNITS = ("lines", "paragraphs", "sentences")


def _documents(texts):
    return [Document(f"d{i}", text, "web", {"n": i}) for i, text in enumerate(texts)]


def _judge(judge, unit, *chunks, min_bytes=1, **options):
    return judge(make(Config(unit=unit, min_bytes=min_bytes), None), *chunks, **options)


def _texts(result):
    return {each.document.id: (each.document.text, each.dropped) for each in result.outcomes}


@pytest.mark.parametrize("unit", UNITS)
@settings(max_examples=30)
@given(texts=TEXTS, data=st.data())
def test_result_does_not_depend_on_order_or_chunks(unit, judge, texts, data):
    documents = _documents(texts)
    whole = _judge(judge, unit, documents)
    other = data.draw(st.permutations(documents))
    points = sorted(data.draw(st.lists(st.integers(0, len(documents)), max_size=2)))
    chunks = [other[a:b] for a, b in itertools.pairwise([0, *points, len(other)])]
    again = _judge(judge, unit, *chunks)
    assert _texts(again) == _texts(whole)
    assert again.figures == whole.figures


@pytest.mark.parametrize("unit", ["lines", "paragraphs"])
@settings(max_examples=30)
@given(texts=TEXTS)
def test_each_span_stays_once_and_a_second_pass_cuts_nothing(unit, judge, texts):
    break_ = {"lines": "\n", "paragraphs": "\n\n"}[unit]

    def spans(documents):
        pieces = [piece for each in documents for piece in each.text.split(break_)]
        return sorted(" ".join(piece.lower().split()) for piece in pieces if piece.strip())

    documents = _documents(texts)
    first = _judge(judge, unit, documents)
    assert spans(first.kept) == sorted(set(spans(documents)))
    again = _judge(judge, unit, first.kept)
    assert again.figures["repeats"] == 0
    assert again.kept == first.kept


@pytest.mark.parametrize("unit", UNITS)
def test_texts_that_share_nothing_stay_as_they_are(unit, judge):
    documents = _documents([f"  a{i}. b{i}!\n\nc{i}?  d{i}.\n" for i in range(5)] + ["", " \n"])
    result = _judge(judge, unit, documents)
    assert result.kept == documents
    assert all(not each.edits for each in result.outcomes)


def test_three_sentences_go_from_all_documents_but_the_first_in_order(judge):
    shared = "Cookies are used here. You may refuse them. Read our policy."
    long = f"A long text comes first. {shared} It goes on for many words."
    short = f"Another text. {shared} The end."
    result = _judge(judge, "sentences", _documents([short]), _documents([long]))
    assert [each.document.text for each in result.outcomes] == ["Another text. The end.", long]
    assert result.outcomes[0].edits == {"repeated sentences": 3}
    assert result.outcomes[1].edits == {}
    assert result.figures == {"spans": 6, "repeats": 1, "spans_by_number_of_places": {"2": 1}}


def test_two_shared_sentences_are_no_span(judge):
    documents = _documents(["One. Two. Three.", "Zero. One. Two. Four."])
    assert _judge(judge, "sentences", documents).kept == documents


def test_document_of_repeats_alone_is_dropped_as_it_came(judge):
    menu = "Home of the best news\nContact the newsroom\n"
    documents = _documents([f"{menu}A story of its own, long enough\n", f"{menu}}}\n"])
    result = _judge(judge, "lines", documents, min_bytes=10)
    dropped = result.outcomes[1]
    assert dropped.dropped == "nothing left but repeats"
    assert dropped.because == "2 lines stand elsewhere too; the rest is in scraps"
    assert dropped.document == documents[1]
    assert result.outcomes[0].document == documents[0]


def test_short_lines_stay(judge):
    documents = _documents(["first one here\n}\n", "second one\n}\n"])
    assert _judge(judge, "lines", documents, min_bytes=2).kept == documents


def test_span_repeated_in_one_document_stays_at_its_first_place(judge):
    (kept,) = _judge(judge, "lines", _documents(["a\nb\na\nc\na\n"])).kept
    assert kept.text == "a\nb\nc"
    (kept,) = _judge(judge, "sentences", _documents(["A. A. A. A. A."])).kept
    assert kept.text == "A. A. A."


def test_result_does_not_depend_on_workers_or_partitions(judge, monkeypatch):
    documents = _documents([f"line {i % 7}\nline {i % 11}\nline {i}\n" for i in range(60)])
    whole = _judge(judge, "lines", documents)
    executor = LocalExecutor(2)
    try:
        spread = _judge(judge, "lines", documents[:9], documents[9:], executor=executor)
    finally:
        executor.close()
    monkeypatch.setattr(shuffle, "PARTITION_BYTES", 500)
    assert spread == whole == _judge(judge, "lines", documents[:9], documents[9:])


def test_no_documents_are_no_error(judge):
    assert _judge(judge, "lines").figures["spans"] == 0
    assert _judge(judge, "lines", []).outcomes == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "words"}, "unit='words' must be one of lines, paragraphs, sentences"),
        ({"min_bytes": 0}, "min_bytes=0 must be at least 1"),
    ],
)
def test_values_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)
