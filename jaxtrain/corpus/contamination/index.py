"""Which n-grams of words belong to which items of which benchmarks, and what a text holds of them.

An item is found by
- every n-gram of its fields one after another, unless more than `_MAX_TEMPLATE_ITEMS` items of its
  benchmark have it: then it is the benchmark's form, not the item;
- its question, and the item as a whole, as one string of words where that has fewer than n words
  but at least `MIN_WORDS`. Shorter ones say nothing: "What is the capital of France?" is on many
  pages without a benchmark.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from jaxtrain import files
from jaxtrain.corpus.contamination.benchmark import Benchmark, BenchmarkItem
from jaxtrain.corpus.contamination.grams import UNKNOWN, GramHashes, Grams
from jaxtrain.corpus.contamination.plain_words import plain_words

COVERAGE_WORDS = 8  # n of the report (PaLM and Tülu 3 use 8-grams)
MIN_WORDS = 8  # of an item that is matched as a whole: the smallest n of GPT-3
QUESTION, ANSWER = 1, 2  # which part of an item an n-gram is of, as bits
_MAX_TEMPLATE_ITEMS = 10
_BATCH_WORDS = 400_000  # of texts looked at together: bounds memory to some 50 MB


class Hits(NamedTuple):
    """N-grams of items in a text, one row a hit and item."""

    words: np.ndarray  # where they begin
    lengths: np.ndarray  # in words
    items: np.ndarray  # of all benchmarks, numbered through
    parts: np.ndarray  # QUESTION, ANSWER or both


class Scan(NamedTuple):
    """What a text holds of the benchmarks."""

    hits: Hits
    covered: np.ndarray  # n-grams of the report, by number


class ItemGrams:
    """N-grams of one length and the items that have them."""

    def __init__(self, words: np.ndarray, grams: np.ndarray, items: np.ndarray, parts: np.ndarray):
        """One row of `grams`, `items` and `parts` a pair of n-gram and item, by n-gram."""
        self.grams = Grams(words)
        self.of_pair, self.items, self.parts = grams, items, parts
        self._first = np.searchsorted(grams, np.arange(len(words) + 1))

    def find(self, numbers: np.ndarray, hashes: GramHashes) -> Hits:
        """The hits in a text."""
        starts, grams = self.grams.find(numbers, hashes)
        counts = self._first[grams + 1] - self._first[grams]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        pairs = np.repeat(self._first[grams], counts) + within
        lengths = np.full(len(pairs), self.grams.length)
        return Hits(np.repeat(starts, counts), lengths, self.items[pairs], self.parts[pairs])

    def to_arrays(self, prefix: str) -> Mapping[str, np.ndarray]:
        """For a file."""
        return {
            f"{prefix}/words": self.grams.words,
            f"{prefix}/grams": self.of_pair,
            f"{prefix}/items": self.items,
            f"{prefix}/parts": self.parts,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], prefix: str) -> "ItemGrams":
        """From a file."""
        return cls(*(arrays[f"{prefix}/{name}"] for name in ("words", "grams", "items", "parts")))


class Index:
    """The n-grams of all benchmarks."""

    def __init__(
        self,
        facts: Mapping[str, Any],
        vocabulary: Sequence[str],
        matched: Sequence[ItemGrams],
        reported: ItemGrams,
    ):
        """`facts` is what `build` notes of benchmarks and settings, as JSON values."""
        self.facts = facts
        self.vocabulary = vocabulary
        self._number_of = {word: number for number, word in enumerate(vocabulary, UNKNOWN + 1)}
        self.matched = matched
        self.reported = reported

    @classmethod
    def build(cls, benchmarks: Sequence[Benchmark], n: int) -> "Index":
        """The index of benchmarks whose items are told by n-grams of `n` words."""
        items = [_ItemWords.of(item) for each in benchmarks for item in each.items]
        vocabulary = sorted({word for item in items for word in item.words})
        number_of = {word: number for number, word in enumerate(vocabulary, UNKNOWN + 1)}
        numbers = [np.array([number_of[w] for w in item.words], np.int32) for item in items]
        of_benchmark = np.repeat(np.arange(len(benchmarks)), [len(b.items) for b in benchmarks])
        questions = [item.num_in_question for item in items]
        rows = _Rows(of_benchmark, numbers, questions)
        lengths = range(min(MIN_WORDS, n), n + 1)
        matched = [rows.item_grams(length, whole=length < n) for length in lengths]
        facts = {
            "n": n,
            "benchmarks": [
                {"name": each.name, "items": len(each.items), "sha256": list(each.sha256)}
                for each in benchmarks
            ],
        }
        filled = [each for each in matched if len(each.items) or each.grams.length == n]
        return cls(facts, vocabulary, filled, rows.item_grams(COVERAGE_WORDS, whole=False))

    def save(self, path: pathlib.Path) -> None:
        """Writes the index as one file."""
        arrays: dict[str, np.ndarray] = {
            "facts": _bytes(json.dumps(dict(self.facts))),
            "vocabulary": _bytes("\n".join(self.vocabulary)),
            **self.reported.to_arrays("reported"),
        }
        for each in self.matched:
            arrays.update(each.to_arrays(f"matched/{each.grams.length}"))
        with files.write_whole(path) as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: pathlib.Path) -> "Index":
        """Reads what `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            lengths = {int(name.split("/")[1]) for name in arrays if name.startswith("matched/")}
            matched = [ItemGrams.from_arrays(arrays, f"matched/{each}") for each in sorted(lengths)]
            words = arrays["vocabulary"].tobytes().decode()
            facts = json.loads(arrays["facts"].tobytes())
            reported = ItemGrams.from_arrays(arrays, "reported")
        return cls(facts, words.split("\n") if words else [], matched, reported)

    @property
    def num_items(self) -> int:
        """Items of all benchmarks together."""
        return sum(each["items"] for each in self.facts["benchmarks"])

    def place(self, item: int) -> tuple[str, int]:
        """The benchmark of an item and its row there."""
        for each in self.facts["benchmarks"]:
            if item < each["items"]:
                return each["name"], item
            item -= each["items"]
        raise IndexError(item)

    def scan(self, texts: Sequence[str]) -> Iterator[Scan]:
        """What each text holds, in order."""
        held: list[np.ndarray] = []
        size = 0
        for text in texts:
            held.append(self._numbers(text))
            size += held[-1].size
            if size >= _BATCH_WORDS:
                yield from self._scan(held)
                held, size = [], 0
        if held:
            yield from self._scan(held)

    def _numbers(self, text: str) -> np.ndarray:
        """The numbers of a text's words, with one that stands for none behind them."""
        words = plain_words(text)
        words.append("")
        return np.fromiter(map(self._number_of.get, words, repeat(UNKNOWN)), np.int32, len(words))

    def _scan(self, texts: list[np.ndarray]) -> Iterator[Scan]:
        numbers = np.concatenate(texts)
        hashes = GramHashes(numbers)
        found = [each.find(numbers, hashes) for each in self.matched]
        hits = Hits(*(np.concatenate(each) for each in zip(*found, strict=True)))
        places, covered = self.reported.grams.find(numbers, hashes)
        ends = np.cumsum([text.size for text in texts])
        order = np.argsort(hits.words, kind="stable")
        hits = Hits(*(each[order] for each in hits))
        hit_cuts, cover_cuts = np.searchsorted(hits.words, ends), np.searchsorted(places, ends)
        first_word = first_hit = first_cover = 0
        for word, hit, cover in zip(ends, hit_cuts, cover_cuts, strict=True):
            own = Hits(*(each[first_hit:hit] for each in hits))
            yield Scan(
                own._replace(words=own.words - first_word), np.unique(covered[first_cover:cover])
            )
            first_word, first_hit, first_cover = word, hit, cover


class _ItemWords(NamedTuple):
    words: list[str]
    num_in_question: int

    @classmethod
    def of(cls, item: BenchmarkItem) -> "_ItemWords":
        texts = [plain_words(text) for text in item.texts]
        return cls([word for words in texts for word in words], len(texts[0]))


class _Rows:
    """All items as numbers of words, one after another, for picking n-grams out of them."""

    def __init__(
        self, of_benchmark: np.ndarray, items: Sequence[np.ndarray], questions: Sequence[int]
    ):
        self._of_benchmark = of_benchmark
        self._sizes = np.array([len(item) for item in items], np.int64)
        self._questions = np.array(questions, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]]).astype(np.int64)
        self._numbers = np.concatenate([*items, np.zeros(0, np.int32)])

    def item_grams(self, n: int, whole: bool) -> ItemGrams:
        """All n-grams of `n` words or, `whole`, those that are a question or an item as a whole."""
        if whole:
            questions = np.flatnonzero(self._questions == n)
            items = np.flatnonzero((self._sizes == n) & (self._questions != n))
            item = np.concatenate([questions, items])
            start = np.zeros(len(item), np.int64)
        else:
            counts = np.maximum(self._sizes - n + 1, 0)
            item = np.repeat(np.arange(len(counts)), counts)
            start = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        places = (self._starts[item] + start)[:, None] + np.arange(n)
        words, gram = np.unique(self._numbers[places], axis=0, return_inverse=True)
        in_question = start + n <= self._questions[item]
        in_answer = start >= self._questions[item]
        part = np.where(in_question, QUESTION, np.where(in_answer, ANSWER, QUESTION | ANSWER))
        return self._without_template(words.reshape(-1, n), gram.reshape(-1), item, part)

    def _without_template(
        self, words: np.ndarray, gram: np.ndarray, item: np.ndarray, part: np.ndarray
    ) -> ItemGrams:
        """One pair of n-gram and item each, without n-grams of too many items of a benchmark."""
        # Of an n-gram that an item has twice, the question's counts: it is seen without an answer.
        order = np.lexsort((part != QUESTION, item, gram))
        gram, item, part = gram[order], item[order], part[order]
        is_first = np.ones(len(gram), bool)
        is_first[1:] = (gram[1:] != gram[:-1]) | (item[1:] != item[:-1])
        gram, item, part = gram[is_first], item[is_first], part[is_first]
        keys = gram * (self._of_benchmark.max(initial=0) + 1) + self._of_benchmark[item]
        _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
        kept = counts[which] <= _MAX_TEMPLATE_ITEMS
        used, renumbered = np.unique(gram[kept], return_inverse=True)
        return ItemGrams(words[used], renumbered, item[kept], part[kept])


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)
