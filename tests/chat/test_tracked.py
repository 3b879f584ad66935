"""Every operation gives the text that `str` gives, each character with where it came from."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxtrain.chat.tracked import MARKUP, Tracked, join, joined, origins, tag_of, tracked

LETTERS = st.text(alphabet="ab -\n<ß\u2028", max_size=12)


def numbered(text: str) -> Tracked:
    """A text in which every character comes from a message of its own."""
    return Tracked(text, tracked_tags(text))


def tracked_tags(text):
    from array import array

    return array("i", [tag_of(place) for place in range(len(text))])


@pytest.mark.parametrize(
    "operation",
    [
        lambda s: s.strip(),
        lambda s: s.lstrip("ab"),
        lambda s: s.rstrip(),
        lambda s: s.removeprefix("a"),
        lambda s: s.removesuffix("b"),
        lambda s: s[1:],
        lambda s: s[::-1],
        lambda s: s.split("a")[-1],
        lambda s: (s.split() or [s])[0],
        lambda s: s.rsplit("-", 1)[-1],
        lambda s: (s.rsplit(None, 1) or [s])[-1],
        lambda s: (s.splitlines() or [s])[0],
        lambda s: (s.splitlines(keepends=True) or [s])[-1],
        lambda s: s.partition("-")[2],
        lambda s: s.rpartition("-")[0],
    ],
)
@hypothesis.given(text=LETTERS)
def test_a_cut_keeps_each_character_with_its_origin(operation, text):
    result = operation(numbered(text))
    assert str.__str__(result) == operation(text)
    # Every character came from its own message, so the origins say which characters these are.
    assert "".join(text[place] for place in origins(result)) == operation(text)


@pytest.mark.parametrize(
    "operation",
    [
        lambda s: s + "xy",
        lambda s: "xy" + s,
        lambda s: s * 2,
        lambda s: s.replace("a", "QQ"),
        lambda s: s.replace("a", "", 1),
        lambda s: s.upper(),
        lambda s: s.lower(),
        lambda s: s.title(),
        lambda s: s.capitalize(),
        lambda s: s.join(["p", "q"]),
    ],
)
@hypothesis.given(text=LETTERS)
def test_a_change_gives_the_text_that_str_gives(operation, text):
    result = operation(Tracked(text, tag_of(3)))
    assert str.__str__(result) == operation(text)
    assert len(result.tags) == len(result)


def test_join_marks_what_has_no_origin_as_markup():
    text = join(["<u>", Tracked("hi", tag_of(4)), "</u>"])
    assert text == "<u>hi</u>"
    np.testing.assert_array_equal(origins(text), [-1] * 3 + [4] * 2 + [-1] * 4)


def test_joined_puts_the_separator_between():
    text = joined(Tracked("--", tag_of(1)), ["a", Tracked("b", tag_of(0)), "c"])
    assert text == "a--b--c"
    np.testing.assert_array_equal(origins(text), [-1, 1, 1, 0, 1, 1, -1])


def test_replacement_belongs_to_the_message_that_it_replaces():
    text = join(["a", Tracked("b<b", tag_of(2))]).replace("b", "xyz")
    assert text == "axyz<xyz"
    np.testing.assert_array_equal(origins(text), [-1] + [2] * 7)


def test_str_and_formatting_by_percent_s_do_not_forget():
    assert str(Tracked("a", tag_of(5))).tags[0] == tag_of(5)


def test_tracked_tags_all_strings_of_a_value_but_not_its_keys():
    value = tracked({"k": ["a", {"n": 1, "t": "b"}], "none": None}, tag_of(7))
    assert value == {"k": ["a", {"n": 1, "t": "b"}], "none": None}
    assert value["k"][0].tags[0] == value["k"][1]["t"].tags[0] == tag_of(7)
    assert not any(isinstance(key, Tracked) for key in value)


def test_markup_has_no_message():
    assert origins(Tracked("x", MARKUP))[0] == -1
