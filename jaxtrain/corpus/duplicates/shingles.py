"""Texts as sets of shingles: 64-bit hashes of their runs of n words or n characters.

Text is lower-cased first. A word is a run of letters, marks and digits; in scripts that put no
space between words (Chinese, Japanese, Thai …) each character is a word. Punctuation is between
words. By characters, runs of white space count as one space. A text with fewer than n units has
one shingle, all of it; a text without any unit has none.

Hashes are polynomials modulo 2^64 over prefix sums, so that a run of any length costs the same:

    prefix[i] = sum of value[j]·base^j, j < i        hash(i, k) = (prefix[k] − prefix[i])·base^−i

in which a value is a mixed code point, or the mixed hash of a word. Nothing depends on the process
or on PYTHONHASHSEED.
"""

import dataclasses
import functools
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxtrain.corpus.mixing import mix

WORDS = "words"
CHARACTERS = "characters"
UNITS = (WORDS, CHARACTERS)
HASHING = "polynomial-1"  # named in every index; another one where hashes of a text change

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_INVERSE = pow(_BASE, -1, 1 << 64)
_BATCH_CHARACTERS = 1 << 16  # arrays of a batch stay in the L2 cache
_APART, _IN_WORD, _WORD = 0, 1, 2  # what a code point is
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # ideographic iteration mark and zero
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # half-width Katakana
    (0x20000, 0x3FFFF),  # Han extensions
)


class Shingles(NamedTuple):
    """The shingles of some texts, one text after the other, repetitions included."""

    hashes: np.ndarray  # uint64
    counts: np.ndarray  # int64, shingles of each text


@dataclasses.dataclass(frozen=True)
class Shingler:
    """Cuts texts into shingles of `size` words or characters."""

    unit: str
    size: int

    def __call__(self, texts: Sequence[str]) -> Iterator[Shingles]:
        """The shingles of the texts, in order, in batches of some 64 Ki characters."""
        batch: list[str] = []
        characters = 0
        for text in texts:
            batch.append(text.lower())
            characters += len(text)
            if characters >= _BATCH_CHARACTERS:
                yield self._of_batch(batch)
                batch, characters = [], 0
        if batch:
            yield self._of_batch(batch)

    def sets(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """The set of each text's shingles as a sorted array."""
        for hashes, counts in self(texts):
            begin = 0
            for end in np.cumsum(counts).tolist():
                part = hashes[begin:end]
                part.sort()  # faster than np.unique, which hashes integers first
                yield part[np.append(True, part[1:] != part[:-1])] if len(part) else part
                begin = end

    def _of_batch(self, lowered: Sequence[str]) -> Shingles:
        cut = _words if self.unit == WORDS else _characters
        return _runs(*cut(lowered), self.size)


def jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """|A ∩ B| / |A ∪ B| of two sets given as sorted arrays, not both empty."""
    small, large = sorted((first, second), key=len)
    shared = int(np.count_nonzero(large.take(large.searchsorted(small), mode="clip") == small))
    return shared / (len(small) + len(large) - shared)


def _words(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(value of each word, number of words of each text)."""
    codes, ends = _code_points(texts)
    kinds = _kinds()[codes]
    inside = kinds == _IN_WORD
    starts_word = kinds == _WORD
    ends_word = starts_word.copy()
    starts_word |= inside
    starts_word[1:] &= ~(inside[1:] & inside[:-1])
    ends_word |= inside
    ends_word[:-1] &= ~(inside[:-1] & inside[1:])
    starts = np.flatnonzero(starts_word)
    values = mix(_polynomials(codes, starts, np.flatnonzero(ends_word) + 1, _values()))
    return values, np.diff(np.searchsorted(starts, ends), prepend=0)


def _characters(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(value of each character, number of characters of each text)."""
    codes, ends = _code_points([" ".join(text.split()) for text in texts])
    taken = np.ones(len(codes), bool)
    taken[ends - 1] = False  # the breaks between texts
    return _values()[codes[taken]], np.diff(ends, prepend=0) - 1


def _code_points(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Code points of the texts, a line break after each, and where each with its break ends."""
    joined = "\n".join([*texts, ""])
    codes = np.frombuffer(joined.encode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass"), np.uint32)
    return codes, np.cumsum([len(text) + 1 for text in texts])


def _runs(values: np.ndarray, counts: np.ndarray, size: int) -> Shingles:
    """Hashes of all runs of `size` values within a text; of a shorter one, of the whole."""
    number = np.where(counts > 0, np.maximum(counts - size + 1, 1), 0)
    offset = (np.cumsum(counts) - counts) - (np.cumsum(number) - number)
    starts = np.arange(number.sum()) + np.repeat(offset, number)
    ends = starts + np.repeat(np.minimum(counts, size), number)
    return Shingles(mix(_polynomials(values, starts, ends)), number)


def _polynomials(
    codes: np.ndarray, starts: np.ndarray, ends: np.ndarray, values: np.ndarray | None = None
) -> np.ndarray:
    """The hash of each run codes[start:end], or values[codes[start:end]]."""
    prefix = np.empty(len(codes) + 1, np.uint64)
    prefix[0] = 0
    powers, stride = _powers(_BASE), len(_powers(_BASE))
    for start in range(0, len(codes), stride):  # in stretches, for a text may have 50 MB
        part = codes[start : start + stride]
        terms = (part if values is None else values[part]) * powers[: len(part)]
        if start:
            terms *= np.uint64(pow(_BASE, start, 1 << 64))
            terms[:1] += prefix[start : start + 1]
        np.cumsum(terms, out=prefix[start + 1 : start + 1 + len(part)])
    hashes = prefix[ends]
    hashes -= prefix[starts]
    inverses = _powers(_INVERSE)
    if len(codes) <= stride:
        hashes *= inverses[starts]
    else:
        hashes *= inverses[starts % stride]
        hashes *= _powers(pow(_INVERSE, stride, 1 << 64))[starts // stride]
    return hashes


@functools.lru_cache(maxsize=3)
def _powers(base: int) -> np.ndarray:
    """base^j modulo 2^64, as many as a batch has characters."""
    factors = np.full(2 * _BATCH_CHARACTERS, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


@functools.lru_cache(maxsize=1)
def _values() -> np.ndarray:
    """A 64-bit value for every code point."""
    return mix(np.arange(1, 0x110001, dtype=np.uint64))


@functools.lru_cache(maxsize=1)
def _kinds() -> np.ndarray:
    """What every code point is. Beyond plane 3 there are no letters (Unicode 16)."""
    kinds = np.full(0x110000, _APART, np.uint8)
    for code in range(0x40000):
        if unicodedata.category(chr(code))[0] in "LMN":
            kinds[code] = _IN_WORD
    for first, last in _UNSPACED:
        block = kinds[first : last + 1]
        block[block == _IN_WORD] = _WORD
    return kinds
