import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.contamination import grams as grams_lib
from jaxtrain.corpus.contamination.grams import GramHashes, Grams


def _find_by_loops(numbers, words):
    n = words.shape[1]
    return [
        (start, row)
        for start in range(len(numbers) - n + 1)
        for row in range(len(words))
        if (numbers[start : start + n] == words[row]).all()
    ]


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.integers(1, 3), min_size=n, max_size=n), min_size=1)
    ),
)
def test_found_n_grams_are_those_of_a_comparison_word_by_word(text, sought):
    words = np.unique(np.array(sought, np.int32), axis=0)
    numbers = np.array(text, np.int32)
    starts, rows = Grams(words).find(numbers, GramHashes(numbers))
    assert list(zip(starts, rows, strict=True)) == _find_by_loops(numbers, words)


def test_n_grams_of_one_hash_are_told_apart_by_their_words(monkeypatch):
    monkeypatch.setattr(grams_lib, "mix", np.zeros_like)
    words = np.array([[1, 2], [2, 1], [3, 3]], np.int32)
    numbers = np.array([1, 2, 1, 3, 3], np.int32)
    starts, rows = Grams(words).find(numbers, GramHashes(numbers))
    assert list(zip(starts, rows, strict=True)) == _find_by_loops(numbers, words)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 20))
def test_hashes_are_the_polynomial_of_their_words_hashes(text, n):
    numbers = np.array(text, np.int32)
    hashes = GramHashes(numbers)
    single = [int(h) for h in hashes[1]]
    expected = [
        sum(
            h * pow(grams_lib._BASE, n - 1 - place, 1 << 64)
            for place, h in enumerate(single[start : start + n])
        )
        % (1 << 64)
        for start in range(max(len(text) - n + 1, 0))
    ]
    assert [int(h) for h in hashes[n]] == expected
