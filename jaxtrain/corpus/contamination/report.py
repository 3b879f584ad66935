"""How much of each benchmark a corpus holds, for its card and for evaluations to come.

An item's coverage is the share of its 8-grams of words that stand anywhere in the corpus, of its
question or of all of it; those of the benchmark's form do not count. An evaluation takes from it
which items are clean.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain.corpus.contamination.index import ANSWER, COVERAGE_WORDS, QUESTION, Index

# Touvron et al. 2023 (Llama 2), appendix A.6.
DIRTY_FRAC, CLEAN_FRAC = 0.8, 0.2
# A document by what it holds of an item. Rules of the step, and keys of the report.
KINDS = {
    QUESTION | ANSWER: "question with answer",
    QUESTION: "question alone",
    ANSWER: "answer alone",
}


class Observed(NamedTuple):
    """What a part of the corpus holds."""

    before: np.ndarray  # 8-grams as it came in, by number
    after: np.ndarray  # and as it goes on
    documents: np.ndarray  # a row for each document and item it holds: a document's number,
    items: np.ndarray  # the item
    parts: np.ndarray  # and what of it


def report(index: Index, observed: Sequence[Observed]) -> dict[str, Any]:
    """For each benchmark what was looked for, what was found, and item by item what is covered."""
    before = coverage(index, [each.before for each in observed])
    after = coverage(index, [each.after for each in observed])
    is_sought = np.zeros(index.num_items, bool)
    for grams in index.matched:
        is_sought[grams.items] = True
    figures: dict[str, Any] = {}
    first = 0
    for benchmark in index.facts["benchmarks"]:
        rows = slice(first, first + benchmark["items"])
        figures[benchmark["name"]] = {
            "items": benchmark["items"],
            "sha256": benchmark["sha256"],
            "not_looked_for": int((~is_sought[rows]).sum()),
            "documents": _documents(observed, first, first + benchmark["items"]),
            "coverage_words": COVERAGE_WORDS,
            "before": _summary(before[rows]),
            "after": _summary(after[rows]),
            "rows": _rows(before[rows], after[rows]),
        }
        first += benchmark["items"]
    return figures


def coverage(index: Index, grams: Sequence[np.ndarray]) -> np.ndarray:
    """Each item's share of 8-grams that are among `grams`; NaN where it has none.

    Of the question and of the item as a whole the greater: a question alone gives an item away.
    """
    reported = index.reported
    is_covered = np.zeros(len(reported.grams.words), bool)
    for each in grams:
        is_covered[each] = True
    held = is_covered[reported.of_pair]
    of_question = reported.parts == QUESTION
    shares = [
        _share(reported.items[chosen], held[chosen], index.num_items)
        for chosen in (of_question, np.ones(len(held), bool))
    ]
    return np.fmax(*shares)


def _share(items: np.ndarray, held: np.ndarray, num_items: int) -> np.ndarray:
    total = np.bincount(items, minlength=num_items)
    return np.where(total > 0, np.bincount(items, held, num_items) / np.maximum(total, 1), np.nan)


def _summary(shares: np.ndarray) -> dict[str, int]:
    return {
        "dirty": int((shares >= DIRTY_FRAC).sum()),
        "clean": int((shares < CLEAN_FRAC).sum()),
        "between": int(((shares >= CLEAN_FRAC) & (shares < DIRTY_FRAC)).sum()),
        "not_measured": int(np.isnan(shares).sum()),
    }


def _rows(before: np.ndarray, after: np.ndarray) -> list[dict[str, Any]]:
    """The items that are not clean, by row of the benchmark's files."""
    return [
        {"row": int(row), "before": round(before[row], 4), "after": round(after[row], 4)}
        for row in np.flatnonzero(before >= CLEAN_FRAC)
    ]


def _documents(observed: Sequence[Observed], first: int, last: int) -> dict[str, int]:
    """How many documents hold items first … last, each counted once by the most that it holds."""
    counts = dict.fromkeys(KINDS.values(), 0)
    for each in observed:
        inside = (each.items >= first) & (each.items < last)
        kinds: dict[int, int] = {}
        for document, part in zip(each.documents[inside], each.parts[inside], strict=True):
            kinds[document] = strongest([kinds.get(document, 0), part])
        for kind in kinds.values():
            counts[KINDS[kind]] += 1
    return counts


def strongest(parts: Sequence[int]) -> int:
    """Of what a document holds of several items: a question with its answer, else a question."""
    return max(parts, key=(0, ANSWER, QUESTION, QUESTION | ANSWER).index)
