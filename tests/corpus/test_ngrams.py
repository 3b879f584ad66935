"""Against the definitions, written out with tuples of words."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.ngrams import ngrams_of
from jaxtrain.corpus.words import split_words

REPETITIVE = st.lists(st.sampled_from(["a", "bb", "ccc", "的", "。", "ไ", "\n"]), max_size=40).map(
    " ".join
)


def grams(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def share_of(words, inside):
    total = sum(map(len, words))
    return sum(len(words[i]) for i in inside) / total if total else 0.0


def letters_per_word(words):
    """Two where more than half of the words are Chinese letters and Thai ones are no more."""
    chinese, thai = (sum(letter in word for word in words) for letter in "的ไ")
    if 2 * (chinese + thai) <= len(words):
        return 1
    return 2 if chinese >= thai else 4


def duplicate_share(words, n):
    seen, inside = set(), set()
    for start, gram in enumerate(grams(words, n)):
        if gram in seen:
            inside.update(range(start, start + n))
        seen.add(gram)
    return share_of(words, inside)


def top_share(words, n):
    counts = Counter(grams(words, n))
    if not counts or max(counts.values()) == 1:
        return 0.0
    most = max(counts.values())
    # A Counter keeps the order of first sight, and max takes the first of equals.
    top = max(
        (gram for gram, count in counts.items() if count == most), key=lambda g: sum(map(len, g))
    )
    starts = [start for start, gram in enumerate(grams(words, n)) if gram == top]
    return share_of(words, {start + k for start in starts for k in range(n)})


@given(st.lists(REPETITIVE, max_size=3), st.integers(1, 10))
def test_shares_equal_the_definition_for_every_text_of_a_group(texts, n):
    for text, found in zip(texts, ngrams_of(texts), strict=True):
        words = split_words(text)
        size = n * letters_per_word(words)
        assert found.duplicate_share(n) == pytest.approx(duplicate_share(words, size), abs=1e-12)
        assert found.top_share(n) == pytest.approx(top_share(words, size), abs=1e-12)


@given(REPETITIVE, st.integers(2, 4))
def test_bound_is_never_below_the_share_it_bounds(text, n):
    [found] = ngrams_of([text])
    assert found.top_bound(n) >= found.top_share(n)


def test_bound_holds_with_words_longer_than_a_key_can_say():
    [found] = ngrams_of([" ".join(["x" * 5000, "y"] * 3)])
    assert found.top_bound(2) >= found.top_share(2) == 1.0


@given(REPETITIVE, st.integers(2, 9))
def test_longer_duplicates_cover_no_more_than_shorter_ones(text, n):
    """What the step's early end stands on."""
    [found] = ngrams_of([text])
    assert found.duplicate_share(n + 1) <= found.duplicate_share(n)
