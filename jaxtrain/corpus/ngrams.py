"""How much of a text its repeated n-grams of words cover, in NumPy, for a group of texts at once.

An n-gram is told from another by a 64-bit hash: among 100,000 words the chance that two different
ones are taken for the same is 3 in 10¹⁰.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from jaxtrain.corpus.word_arrays import LONGEST, word_arrays

_FACTOR = np.uint64(0xBF58476D1CE4E5B9)  # odd, without a pattern


class NGrams:
    """The words of one text; all shares are of the characters in its words.

    Where most of them are letters of scripts without spaces, `n` words are n times as many letters
    as `words.py` takes for a word: two in Chinese and Japanese, four in Thai and its like.
    """

    def __init__(
        self,
        keys: np.ndarray,
        num_chars: np.ndarray,
        chars_of_word: np.ndarray,
        letters_per_word: int = 1,
    ):
        self._keys = keys  # of each word in order: equal where the words are
        self._num_chars = num_chars  # of each word in order
        self._chars_of_word = chars_of_word  # in all occurrences of each different word
        self._letters_per_word = letters_per_word
        self._total = max(int(num_chars.sum()), 1)

    def top_bound(self, n: int) -> float:
        """No n-gram covers a greater share: that of the n words which cover most."""
        if self._num_chars.max(initial=0) >= LONGEST:
            return 1.0  # `chars_of_word` is too small for such words
        most = self._chars_of_word
        n *= self._letters_per_word
        if n < most.size:
            most = np.partition(most, most.size - n)[-n:]
        return float(most.sum() / self._total)

    def top_share(self, n: int) -> float:
        """Share of characters in occurrences of the most frequent n-gram; 0 if none comes twice.

        Of equally frequent ones the longest counts, of these the first.
        """
        n *= self._letters_per_word
        hashes = self._hashes(n)
        if not hashes.size:
            return 0.0
        _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        most = counts.max()
        if most == 1:
            return 0.0
        starts = np.sort(first[counts == most])
        ends = np.concatenate([[0], np.cumsum(self._num_chars)])
        longest = starts[np.argmax(ends[starts + n] - ends[starts])]
        return self._covered(np.flatnonzero(hashes == hashes[longest]), n)

    def duplicate_share(self, n: int) -> float:
        """Share of characters in n-grams that have occurred before, each character once."""
        n *= self._letters_per_word
        hashes = self._hashes(n)
        ordered = np.sort(hashes)
        if not (ordered[1:] == ordered[:-1]).any():
            return 0.0
        order = np.argsort(hashes, kind="stable")  # of equal ones the earliest comes first
        ordered = hashes[order]
        return self._covered(order[1:][ordered[1:] == ordered[:-1]], n)

    def _hashes(self, n: int) -> np.ndarray:
        count = max(self._keys.size - n + 1, 0)
        hashes = np.zeros(count, np.uint64)
        for shift in range(n):
            hashes *= _FACTOR
            hashes += self._keys[shift : shift + count]
        return hashes

    def _covered(self, starts: np.ndarray, n: int) -> float:
        change = np.zeros(self._keys.size + 1, np.int32)
        change[starts] += 1  # no start comes twice
        change[starts + n] -= 1
        inside = np.cumsum(change[:-1]) > 0
        return float(self._num_chars[inside].sum() / self._total)


def ngrams_of(texts: Sequence[str]) -> Iterator[NGrams]:
    """`NGrams` of each text; measured together, so that short texts cost little each."""
    keys, num_chars, bounds, letters_per_word = word_arrays(texts)
    ordered = keys.copy()
    for start, stop in itertools.pairwise(bounds):
        ordered[start:stop].sort()
    # The occurrences of a word in a text are now a run.
    is_first = np.ones(ordered.size, bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    is_first[bounds[bounds < ordered.size]] = True
    firsts = np.flatnonzero(is_first)
    lengths = (ordered[firsts] & np.uint64(LONGEST)).astype(np.int64)
    chars_of_word = np.diff(firsts, append=ordered.size) * lengths
    word_bounds = np.searchsorted(firsts, bounds)
    for i in range(len(texts)):
        every = slice(bounds[i], bounds[i + 1])
        different = slice(word_bounds[i], word_bounds[i + 1])
        yield NGrams(
            keys[every], num_chars[every], chars_of_word[different], int(letters_per_word[i])
        )
