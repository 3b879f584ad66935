import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.contamination.plain_words import plain_words, word_spans

_text = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("aAbB1 .,_-'’\n\t\u200b\u3000\ufe0f\u0301\u3099Ａ１ﬁ漢字かガกี่한"),
    )
)
_WORDS = ["she", "sells", "16", "eggs", "a", "day", "janets", "ducks"]


@pytest.mark.parametrize(
    "text",
    [
        "She sells 16 eggs a day! Janet's ducks",
        "she\nsells\r\n16   eggs\ta day -- JANET’S Ducks.",
        "she sells 16 eggs a day: Janet s ducks",
        "(she) [sells] *16* “eggs” a_day; Janets—ducks…",
        "Ｓｈｅ　ｓｅｌｌｓ １６ eggs a day Janet's ducks",
        "she se\u200blls 16 eg\u00adgs a day Janet's ducks",
    ],
)
def test_words_are_the_same_whatever_case_punctuation_width_and_breaks(text):
    assert plain_words(text) == _WORDS


def test_characters_of_unspaced_scripts_are_words_beside_words():
    assert plain_words("用 Python3 写，ガ\u3099。") == ["用", "python3", "写", "ガ\u3099"]


def test_marks_of_other_scripts_stay_with_their_letters():
    assert plain_words("हिन्दी में، عَرَبِيّ!") == ["हिन्दी", "में", "عَرَبِيّ"]


@given(_text)
def test_words_hold_no_spaces_and_their_own_words_are_themselves(text):
    words = plain_words(text)
    assert all(words)
    assert not any(re.search(r"\s", word) for word in words)
    assert len(word_spans(text)) == len(words)


@given(_text)
def test_ascii_and_other_texts_are_split_alike(text):
    ascii_text = text.encode("ascii", "ignore").decode()
    assert plain_words(ascii_text + " é") == [*plain_words(ascii_text), "é"]


@given(_text)
def test_spans_are_in_order_and_hold_their_word(text):
    spans = word_spans(text)
    assert spans == sorted(spans)
    for word, span in zip(plain_words(text), spans, strict=True):
        assert word in plain_words(text[span.start : span.stop])
