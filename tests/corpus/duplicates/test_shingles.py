import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.duplicates import shingles
from jaxtrain.corpus.duplicates.shingles import CHARACTERS, WORDS, Shingler, jaccard

HAN = "人人生而自由在尊严和权利上一律平等"
TEXTS = st.text(st.sampled_from("ab éÉ\u0301ßİ1人ไ\t\n.,-_\u3000\U0001f600"), max_size=40)


def _sets(texts, unit=WORDS, size=2):
    return [set(each.tolist()) for each in Shingler(unit, size).sets(texts)]


def _words(text):
    """The words of a text, letter by letter."""
    words, inside = [], False
    for letter in text.lower():
        if letter in "人ไ":
            words.append(letter)
            inside = False
        elif unicodedata.category(letter)[0] in "LMN":
            words[len(words) - inside :] = [(words[-1] if inside else "") + letter]
            inside = True
        else:
            inside = False
    return words


def _runs(units, size):
    if not units:
        return []
    return [tuple(units[i : i + size]) for i in range(max(1, len(units) - size + 1))]


@given(st.lists(TEXTS, min_size=1, max_size=8), st.integers(1, 4))
def test_word_shingles_are_equal_where_runs_of_words_are(texts, size):
    expected = [_runs(_words(text), size) for text in texts]
    hashes, counts = next(Shingler(WORDS, size)(texts))
    assert counts.tolist() == [len(runs) for runs in expected]
    pairs = set(zip(hashes.tolist(), [run for runs in expected for run in runs], strict=True))
    assert len(pairs) == len({value for value, _ in pairs}) == len({run for _, run in pairs})


@given(st.lists(TEXTS, min_size=1, max_size=8), st.integers(1, 6))
def test_character_shingles_are_equal_where_runs_of_characters_are(texts, size):
    expected = [_runs(" ".join(text.lower().split()), size) for text in texts]
    hashes, counts = next(Shingler(CHARACTERS, size)(texts))
    assert counts.tolist() == [len(runs) for runs in expected]
    pairs = set(zip(hashes.tolist(), [run for runs in expected for run in runs], strict=True))
    assert len(pairs) == len({value for value, _ in pairs}) == len({run for _, run in pairs})


@given(st.lists(TEXTS, min_size=1, max_size=6), st.sampled_from([WORDS, CHARACTERS]))
def test_shingles_do_not_depend_on_the_texts_around(texts, unit):
    together = _sets(texts, unit)
    assert together == [_sets([text], unit)[0] for text in texts]


@pytest.mark.parametrize("unit", [WORDS, CHARACTERS])
def test_shingles_do_not_depend_on_batches(unit, monkeypatch):
    texts = [f"word{i} in text {i * 7}, of {'many ' * (i % 5)}words" for i in range(60)]
    whole = _sets(texts, unit, 3)
    monkeypatch.setattr(shingles, "_BATCH_CHARACTERS", 50)
    assert len(list(Shingler(unit, 3)(texts))) > 10
    assert _sets(texts, unit, 3) == whole


def test_long_text_has_the_shingles_of_its_parts():
    words = [f"w{i}" for i in range(40_000)]  # more characters than a batch
    (whole,) = _sets([" ".join(words)], size=5)
    parts = _sets([" ".join(words[i : i + 5]) for i in range(len(words) - 4)], size=5)
    assert whole == set().union(*parts)
    assert len(whole) == 39_996


def test_case_punctuation_and_spacing_are_no_difference_between_words():
    one, other = _sets(["The quick, brown\nfox", "the QUICK brown -- fox!"], size=3)
    assert one == other
    assert len(one) == 2


def test_characters_are_words_in_scripts_without_spaces():
    plain, spaced = _sets([HAN, " ".join(HAN)], size=5)
    assert len(plain) == len(HAN) - 4
    assert plain == spaced


def test_marks_belong_to_their_words():
    hindi = "हिन्दी भाषा"  # vowel signs and a virama inside both words
    assert len(_sets([hindi], size=1)[0]) == 2


def test_short_text_is_one_shingle_and_one_without_words_has_none():
    assert [len(each) for each in _sets(["one two", "", " \n\t", "!!! ???"], size=5)] == [
        1,
        0,
        0,
        0,
    ]


def test_supplementary_planes_are_told_apart():
    first, second = _sets(["\U0001f600", "\U000e0041"], CHARACTERS, 1)
    assert first != second


@given(st.sets(st.integers(0, 30), min_size=1), st.sets(st.integers(0, 30)))
def test_jaccard_is_shared_over_all(first, second):
    arrays = (np.array(sorted(each), np.uint64) for each in (first, second))
    assert jaccard(*arrays) == len(first & second) / len(first | second)
