"""No broken character and no part of a stop string is given out, however tokens cut the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.decode.text import AnswerText, stop_strings
from jaxtrain.tokenizer.streaming import StreamDecoder

BYTES = [bytes([byte]) for byte in range(256)]


def answer(stop=()) -> AnswerText:
    return AnswerText(StreamDecoder(BYTES, lambda ids: ""), stop)


@pytest.mark.parametrize("stop", ["Q:", ["Q:"]])
def test_a_stop_string_ends_the_text_and_is_not_returned(stop):
    text = answer(stop_strings(stop))
    pieces = [text.push([byte]) for byte in b"Quick. Q: x"]
    assert "".join(pieces) + text.finish() == "Quick. "
    assert text.is_stopped
    assert text.num_ids == len("Quick. Q:")


def test_text_is_given_out_as_soon_as_it_cannot_be_a_stop():
    text = answer(["###"])
    assert [text.push([byte]) for byte in b"a#b##c"] == ["a", "", "#b", "", "", "##c"]
    assert text.finish() == ""


def test_what_was_held_back_comes_at_the_end():
    text = answer(["###"])
    assert text.push(list(b"a##")) == "a"
    assert text.finish() == "##"


def test_the_earliest_of_several_stops_counts():
    text = answer(["c", "bc"])
    assert text.push(list(b"abcd")) == "a"


@given(
    st.text(alphabet="ab\u00e9\U0001f98a", max_size=20),
    st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=3), max_size=3),
    st.data(),
)
def test_pieces_join_to_the_text_before_the_first_stop(text, stop, data):
    ids = list(text.encode())
    streamed, out = answer(stop), []
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        out.append(streamed.push(ids[:size]))
        ids = ids[size:]
    out.append(streamed.finish())
    ends = [(text.find(each) + len(each), text.find(each)) for each in stop if each in text]
    first_end = min((end for end, _ in ends), default=len(text))
    starts = [start for end, start in ends if end == first_end]
    assert "".join(out) == (text[: min(starts)] if starts else text)
    assert "\ufffd" not in "".join(out)


@pytest.mark.parametrize("stop", ["", ["x", ""], [3]])
def test_an_empty_stop_is_refused(stop):
    with pytest.raises(ValueError, match="at least one character"):
        stop_strings(stop)


@pytest.mark.parametrize("stop", [5, True, {"a": 1}])
def test_a_stop_that_is_no_text_is_refused(stop):
    with pytest.raises(ValueError, match="must be a string or a list of strings"):
        stop_strings(stop)


def test_stop_strings_may_be_none():
    assert stop_strings(None) == ()
