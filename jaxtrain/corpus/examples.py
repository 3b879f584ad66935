"""A few documents that show what a rule does: the same ones however the corpus is cut.

Kept are those whose text has the smallest SHA-256, one for each text. So the examples of a whole
follow from those of its parts, in any order.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome

EXAMPLES_PER_RULE = 3
_EXCERPT_CHARACTERS = 200
_LEAD_IN_CHARACTERS = 40  # shown before the first change

Row = TypeVar("Row", bound=tuple[Any, ...])


class Example(NamedTuple):
    """A document that a rule removed or changed."""

    sha256: str  # of the text as it came
    id: str
    source: str
    origin: str
    because: str
    text: str  # its beginning; of a changed text from just before the first change
    changed_to: str  # the same stretch afterwards; empty where removed


def text_sha256(text: str) -> str:
    """The SHA-256 of a text's UTF-8, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def smallest(rows: Iterable[Row], limit: int) -> list[Row]:
    """The first few in order, one for each first field: the hash of a text."""
    chosen: list[Row] = []
    for row in sorted(rows):
        if len(chosen) == limit:
            break
        if not chosen or row[0] != chosen[-1][0]:
            chosen.append(row)
    return chosen


def make_example(document: Document, outcome: Outcome) -> Example:
    """The example that a document gives for any rule that acted on it."""
    before, after, start = document.text, "", 0
    if outcome.dropped is None:
        after = outcome.document.text
        start = max(0, _first_change(before, after) - _LEAD_IN_CHARACTERS)
    stretch = slice(start, start + _EXCERPT_CHARACTERS)
    origin = str(document.metadata.get("origin", ""))
    return Example(
        text_sha256(before),
        document.id,
        document.source,
        origin,
        outcome.because,
        before[stretch],
        after[stretch],
    )


def _first_change(before: str, after: str) -> int:
    """The first character that differs, by bisection of the common prefix."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
