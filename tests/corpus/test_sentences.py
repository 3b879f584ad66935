import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.sentences import sentence_spans


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("pi is 3.14 at www.example.org. Yes", ["pi is 3.14 at www.example.org.", "Yes"]),
        ('He said "no." Then left.', ['He said "no."', "Then left."]),
        ("天气好。我们走吧！“好。”他说", ["天气好。", "我们走吧！", "“好。”", "他说"]),
        ("A line\n\n  another one  \n", ["A line", "another one"]),
        ("Wait... what?!\u2028No", ["Wait...", "what?!", "No"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_sentences_end_at_marks_and_lines(text, expected):
    assert [text[start:end] for start, end in sentence_spans(text)] == expected


@given(st.text('ab .!?。”\n"', max_size=40))
def test_sentences_hold_everything_but_white_space_in_order(text):
    spans = sentence_spans(text)
    found = "".join(text[start:end] for start, end in spans)
    assert "".join(found.split()) == "".join(text.split())
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    assert all("\n" not in text[start:end] for start, end in spans)
