"""Sets of n-grams of words, looked up in a text by the million a second, in NumPy.

Words are numbers; an n-gram is hashed to 64 bits, a bitmap tells most of a text off, and what is
left is compared word by word: a hit is never a matter of chance.
"""

import numpy as np

from jaxtrain.corpus.mixing import mix

UNKNOWN = 0  # the number of a word that no n-gram of a set holds; also stands between texts
_GAMMA = 0x9E3779B97F4A7C15  # of splitmix64 (Steele, Lea, Flood 2014), odd
_BASE = 0xD1342543DE82EF95  # odd; a multiplier of Steele and Vigna (2021)
_BITS_PER_GRAM = 64  # of the bitmap: one n-gram in 64 is compared for nothing


class Grams:
    """A set of n-grams of one length, found by their hashes and verified by their words."""

    def __init__(self, words: np.ndarray):
        """Args: words: [n-gram, place], numbers of words, all rows different."""
        self.words = words
        self.length = words.shape[1]
        hashes = GramHashes(words.reshape(-1))[self.length][:: self.length]
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        size = max(int(np.ceil(np.log2(max(len(words), 1) * _BITS_PER_GRAM))), 10)
        self._shift = np.uint64(64 - size)
        self._bitmap = np.zeros(1 << size, bool)
        self._bitmap[hashes >> self._shift] = True

    def find(self, numbers: np.ndarray, hashes: "GramHashes") -> tuple[np.ndarray, np.ndarray]:
        """Places where n-grams of the set begin in a text, and which rows of `words` they are."""
        own = hashes[self.length]
        places = np.flatnonzero(self._bitmap[own >> self._shift])
        first = np.searchsorted(self._hashes, own[places], "left")
        last = np.searchsorted(self._hashes, own[places], "right")
        found = [(places[:0], places[:0])]
        for step in range(int((last - first).max(initial=0))):  # over 1 where hashes collide
            inside = first + step < last
            starts, grams = places[inside], self._order[first[inside] + step]
            windows = numbers[starts[:, None] + np.arange(self.length)]
            same = (windows == self.words[grams]).all(1)
            found.append((starts[same], grams[same]))
        starts, grams = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.argsort(starts, kind="stable")
        return starts[order], grams[order]


class GramHashes:
    """Hashes of the n-grams of a text, Σ h_i·B^(n−1−i) mod 2⁶⁴, each n made of shorter ones.

    The high bits are the good ones.
    """

    def __init__(self, numbers: np.ndarray):
        spread = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
        self._of = {1: mix(spread)}

    def __getitem__(self, n: int) -> np.ndarray:
        if n not in self._of:
            head = 1 << ((n - 1).bit_length() - 1)  # the largest power of two below n
            tail = n - head
            count = max(self._of[1].size - n + 1, 0)
            power = np.uint64(pow(_BASE, tail, 1 << 64))
            self._of[n] = self[head][:count] * power + self[tail][head : head + count]
        return self._of[n]
