"""An n-gram language model of words, trained in place: interpolated modified Kneser-Ney.

Chen and Goodman (1998), section 3, as KenLM estimates it (Heafield et al. 2013): for an n-gram hw
of adjusted count a(hw) and the discounts D of its order

    p(w|h) = (a(hw) − D(a)) / a(h·)  +  γ(h) p(w|h′),    γ(h) = Σ_w D(a(hw)) / a(h·)

with h′ the history without its first word, p(w) mixed with 1/|V|, V the known words and one that
stands for all others. The adjusted count is the count itself at the highest order and for what
begins a text, else the number of different words before. A text is one sequence that begins with a
mark; words are those of `duplicates/shingles.py` (lower case, without punctuation, a character each
in scripts without spaces). Perplexity is per word: exp of the mean of −ln p.
"""

import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain import files
from jaxtrain.corpus.duplicates import shingles
from jaxtrain.corpus.mixing import mix

_FORMAT = f"ngram-1 {shingles.HASHING}"
_BEGIN = np.uint64(0x62656769_6E746578)  # stands before the first word of a text
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# Where counts of counts do not give discounts (little text), those of `lmplz --discount_fallback`.
_FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)


class _Table:
    """Log probability and log back-off weight of every n-gram of one order, found by hash."""

    def __init__(self, keys: np.ndarray, logprobs: np.ndarray, backoffs: np.ndarray):
        self.keys, self.logprobs, self.backoffs = keys, logprobs, backoffs
        # Where the keys of each value of the leading bits begin: about one key each.
        bits = max(len(keys), 2).bit_length()
        self._shift = np.uint64(64 - bits)
        edges = np.arange(1 << bits, dtype=np.uint64) << self._shift
        starts = np.append(np.searchsorted(keys, edges), len(keys))
        self._starts = starts.astype(np.min_scalar_type(-len(keys) - 1))

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """Where each of the hashes is among the keys; −1 where it is not."""
        bucket = (wanted >> self._shift).astype(np.int64)
        at, end = self._starts[bucket], self._starts[bucket + 1]
        found = np.full(len(wanted), -1)
        open_ = np.flatnonzero(at < end)
        at, end = at[open_], end[open_]
        while len(open_):
            hit = self.keys[at] == wanted[open_]
            found[open_[hit]] = at[hit]
            at = at + 1
            left = ~hit & (at < end)
            open_, at, end = open_[left], at[left], end[left]
        return found


class _Sequences(NamedTuple):
    """Texts one after the other, each begun by the mark."""

    words: np.ndarray  # hash of each word, the marks included
    places: np.ndarray  # of each in its text; 0: the mark
    counts: np.ndarray  # words of each text, without the mark

    def hashes(self, order: int) -> list[np.ndarray]:
        """For n = 1 … order the hash of the n words that end at each place, from the left."""
        hashes = [self.words]
        for _ in range(1, order):
            longer = self.words.copy()
            longer[1:] += hashes[-1][:-1] * _FACTOR
            hashes.append(mix(longer))
        return hashes


class NGramModel:
    """Gives texts their perplexity; made by `train` or `load`."""

    def __init__(self, tables: Sequence[_Table], unknown_logprob: float, facts: dict[str, Any]):
        self._tables, self._unknown = tables, unknown_logprob
        self.facts = facts  # JSON values

    def perplexities(self, texts: Sequence[str]) -> np.ndarray:
        """Perplexity per word of each text (float64); NaN where it has no word."""
        counts: list[np.ndarray] = [np.zeros(0, np.int64)]
        sums: list[np.ndarray] = [np.zeros(0)]
        for part in _sequences(texts):
            owners = np.repeat(np.arange(len(part.counts)), part.counts)
            counts.append(part.counts)
            sums.append(np.bincount(owners, self.logprobs(part), len(part.counts)))
        num_words = np.concatenate(counts)
        mean = np.concatenate(sums) / np.where(num_words, num_words, np.nan)
        return np.exp(np.minimum(-mean, 700))

    def logprobs(self, sequences: _Sequences) -> np.ndarray:
        """ln p of each word but the marks, given what goes before."""
        hashes = sequences.hashes(len(self._tables))
        found = self._tables[0].find(hashes[0])
        logprobs = np.where(found >= 0, self._tables[0].logprobs[found], self._unknown)
        for n, table in enumerate(self._tables[1:], 1):
            has_history = sequences.places >= n
            before = np.roll(found, 1)  # the history, among the n-grams one order below
            known_history = has_history & (before >= 0)
            backoffs = np.where(known_history, self._tables[n - 1].backoffs[before], 0.0)
            found = np.where(has_history, table.find(hashes[n]), -1)
            logprobs = np.where(found >= 0, table.logprobs[found], logprobs + backoffs)
        return logprobs[sequences.places > 0]

    def save(self, path: pathlib.Path) -> None:
        """Writes the file whole or not at all; the same model gives the same bytes."""
        arrays: dict[str, Any] = {}
        for n, table in enumerate(self._tables, 1):
            arrays |= {
                f"keys{n}": table.keys,
                f"logprobs{n}": table.logprobs,
                f"backoffs{n}": table.backoffs,
            }
        facts = json.dumps(self.facts, sort_keys=True)
        with files.write_whole(path) as file:
            np.savez(file, format=_FORMAT, facts=facts, unknown=self._unknown, **arrays)

    @classmethod
    def load(cls, path: pathlib.Path) -> "NGramModel":
        """Reads what `save` wrote.

        Raises:
          ValueError: the file is of another kind, or its words were hashed otherwise.
        """
        with np.load(path) as file:
            made = str(file["format"]) if "format" in file else "another program"
            if made != _FORMAT:
                raise ValueError(f"{path} was made by {made}, not {_FORMAT}; train it anew")
            facts = json.loads(str(file["facts"]))
            tables = [
                _Table(file[f"keys{n}"], file[f"logprobs{n}"], file[f"backoffs{n}"])
                for n in range(1, facts["order"] + 1)
            ]
            return cls(tables, float(file["unknown"]), facts)


def train(texts: Iterable[str], order: int = 5) -> NGramModel:
    """Estimates a model; all of its n-grams are held in memory, about 24 bytes each.

    Raises:
      ValueError: the texts hold no word.
    """
    parts = list(_sequences(texts))
    if not sum(int(part.counts.sum()) for part in parts):
        raise ValueError("the reference text holds no word; name other text")
    text = _Sequences(*map(np.concatenate, zip(*parts, strict=True)))
    estimates = _estimates(text, order)
    tables, lower = [], None
    for n, seen in enumerate(estimates):
        shares = _discounted(seen)
        if lower is None:  # words, mixed with 1/|V|; the mark is no word
            uniform = 1 / (len(seen.keys) + 1)
            unknown = float(shares.backoff[0] * uniform)
            probs = shares.share + unknown
            begin = np.searchsorted(seen.keys, _BEGIN)
            keys = np.insert(seen.keys, begin, _BEGIN)
            probs = np.insert(probs, begin, 0.0)
        else:
            keys = seen.keys
            probs = (
                shares.share
                + shares.backoff[shares.group] * lower[1][np.searchsorted(lower[0], seen.suffixes)]
            )
            tables[n - 1].backoffs[tables[n - 1].find(shares.histories)] = np.log(shares.backoff)
        with np.errstate(divide="ignore"):  # ln 0 of the mark, which nothing asks for
            logprobs = np.log(probs).astype(np.float32)
        tables.append(_Table(keys, logprobs, np.zeros(len(keys), np.float32)))
        lower = keys, probs
    facts = {"order": order, "texts": len(text.counts), "words": int(text.counts.sum())}
    return NGramModel(tables, float(np.log(unknown)), facts)


class _Seen(NamedTuple):
    """The different n-grams of one order."""

    keys: np.ndarray  # hashes, ascending
    counts: np.ndarray  # adjusted
    histories: np.ndarray  # hash of each without its last word
    suffixes: np.ndarray  # hash of each without its first word


class _Shares(NamedTuple):
    share: np.ndarray  # of each n-gram: (a − D) / a(h·)
    group: np.ndarray  # of each n-gram: which history
    histories: np.ndarray  # hash of each history
    backoff: np.ndarray  # γ of each history


def _estimates(text: _Sequences, order: int) -> list[_Seen]:
    hashes = text.hashes(order)
    found: list[_Seen] = []
    longer: _Seen | None = None
    for n in range(order, 0, -1):
        here = hashes[n - 1]
        valid = text.places >= max(n - 1, 1)
        if longer is None:
            valued = here[valid]
        else:  # once for each different word before; what begins a text as often as it comes
            starting = here[valid & (text.places == n - 1)]
            valued = np.concatenate([longer.suffixes, starting])
        keys, counts = np.unique(valued, return_counts=True)
        first_keys, first = np.unique(here[valid], return_index=True)
        at = np.flatnonzero(valid)[first[np.searchsorted(first_keys, keys)]]
        if n == 1:
            nothing = np.zeros(len(keys), np.uint64)
            longer = _Seen(keys, counts, nothing, nothing)
        else:
            longer = _Seen(keys, counts, hashes[n - 2][at - 1], hashes[n - 2][at])
        found.append(longer)
    return found[::-1]


def _discounted(seen: _Seen) -> _Shares:
    discounts = np.array([0.0, *_discounts(seen.counts)])[np.minimum(seen.counts, 3)]
    histories, group = np.unique(seen.histories, return_inverse=True)
    totals = np.bincount(group, seen.counts)
    share = (seen.counts - discounts) / totals[group]
    return _Shares(share, group, histories, np.bincount(group, discounts) / totals)


def _discounts(counts: np.ndarray) -> Sequence[float]:
    """D₁, D₂ and D₃₊ = k − (k+1)·Y·n_{k+1}/n_k, with Y = n₁/(n₁+2n₂)."""
    n = np.bincount(np.minimum(counts, 5), minlength=6)[:5].astype(float)
    if (n[1:] == 0).any():
        return _FALLBACK_DISCOUNTS
    y = n[1] / (n[1] + 2 * n[2])
    found = [k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]
    if any(not 0 < value <= k for k, value in enumerate(found, 1)):
        return _FALLBACK_DISCOUNTS
    return found


def _sequences(texts: Iterable[str]) -> Iterable[_Sequences]:
    """Texts as sequences, some at a time."""
    for hashes, counts in shingles.Shingler(shingles.WORDS, 1)(list(texts)):
        starts = np.cumsum(counts) - counts
        words = np.insert(hashes, starts, _BEGIN)
        lengths = counts + 1
        ends = np.cumsum(lengths)
        places = np.arange(len(words)) - np.repeat(ends - lengths, lengths)
        yield _Sequences(words, places, counts)
