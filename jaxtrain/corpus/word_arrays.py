"""The words of many texts as arrays: where they are, how long, which are equal. No string is made.

The words are those of `words.split_words`, found in the code points: two to three times as quick,
since repetition rules need no more of a word than whether it is another one.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtrain.corpus import words
from jaxtrain.corpus.mixing import mix

# Kinds of characters; the unspaced ones last.
_SPACE, _CLINGING, _OTHER, _UNSPACED_DENSE, _UNSPACED_OTHER = range(5)
# A word's key is its length (or this, where it is longer) below a hash of 54 bits: among 20,000
# different words of a text the chance that two have the same is 1 in 10⁸.
LENGTH_BITS = 10
LONGEST = (1 << LENGTH_BITS) - 1
# An odd number of no pattern, and its inverse modulo 2⁶⁴.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)


class WordArrays(NamedTuple):
    """The words of some texts, one text after the other."""

    keys: np.ndarray  # uint64, equal where words are
    num_chars: np.ndarray  # int64
    bounds: np.ndarray  # the words of text i are those from bounds[i] to bounds[i + 1]
    letters_per_word: np.ndarray  # of each text: 1 where most of its words stand between spaces


def word_arrays(texts: Sequence[str]) -> WordArrays:
    """Finds the words of the texts; takes 40 bytes of memory a character meanwhile."""
    joined = "\n".join(["", *texts, ""])
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _kinds()[codes]
    starts, ends = _boundaries(kinds)
    # The sum of code · base^place, over a word by two prefix sums, moved to place 0.
    powers, inverses = _powers(codes.size)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(codes * powers[: codes.size])])
    hashes = mix((sums[ends] - sums[starts]) * inverses[starts])
    num_chars = ends - starts
    lengths = np.minimum(num_chars, LONGEST).astype(np.uint64)
    keys = (hashes & ~np.uint64(LONGEST)) | lengths
    text_starts = np.cumsum([1, *(len(text) + 1 for text in texts)])
    bounds = np.searchsorted(starts, text_starts)
    return WordArrays(keys, num_chars, bounds, _letters_per_word(kinds, bounds, text_starts))


def _boundaries(kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where words begin and end; the first and the last character are white space."""
    filled = kinds != _SPACE
    change = np.flatnonzero(filled[1:] != filled[:-1]) + 1
    starts, ends = change[::2], change[1::2]
    if (kinds >= _UNSPACED_DENSE).any():
        # Between two characters with nothing but clinging ones between them, if either is unspaced.
        places = np.flatnonzero(kinds != _CLINGING)
        kinds = kinds[places]
        both = (kinds[1:] != _SPACE) & (kinds[:-1] != _SPACE)
        either = (kinds[1:] >= _UNSPACED_DENSE) | (kinds[:-1] >= _UNSPACED_DENSE)
        cuts = places[1:][both & either]
        starts = np.sort(np.concatenate([starts, cuts]))
        ends = np.sort(np.concatenate([ends, cuts]))
    return starts, ends


def _letters_per_word(kinds: np.ndarray, bounds: np.ndarray, text_starts: np.ndarray) -> np.ndarray:
    """What `words.py` says of the script that most words of each text are in."""
    dense, other = (
        np.diff(np.searchsorted(np.flatnonzero(kinds == kind), text_starts))
        for kind in (_UNSPACED_DENSE, _UNSPACED_OTHER)
    )
    of_script = np.where(dense >= other, words.LETTERS_PER_WORD_DENSE, words.LETTERS_PER_WORD_OTHER)
    return np.where(2 * (dense + other) > np.diff(bounds), of_script, 1)


@functools.cache
def _kinds() -> np.ndarray:
    """The kind of each code point."""
    every = "".join(map(chr, range(0x110000)))
    kinds = np.full(len(every), _CLINGING, np.uint8)
    for kind, pattern in (
        (_OTHER, words.WORD_CHARACTERS),
        (_SPACE, words.WHITE_SPACE),
        (_UNSPACED_OTHER, words.UNSPACED_LETTERS),
    ):
        for match in pattern.finditer(every):
            kinds[match.start() : match.end()] = kind
    for match in words.DENSE_CHARACTERS.finditer(every):
        dense = kinds[match.start() : match.end()]
        dense[dense == _UNSPACED_OTHER] = _UNSPACED_DENSE
    return kinds


_power_cache: list[np.ndarray] = [np.ones(1, np.uint64), np.ones(1, np.uint64)]


def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """At least `count` powers of the base and of its inverse."""
    if _power_cache[0].size < count:
        for i, base in enumerate((_BASE, _INVERSE)):
            factors = np.full(2 * count, base, np.uint64)
            factors[0] = 1
            _power_cache[i] = np.cumprod(factors)
    return _power_cache[0], _power_cache[1]
