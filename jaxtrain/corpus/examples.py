"""A few documents that show what a rule does: the same ones however the corpus is cut.

Kept are those whose text has the smallest SHA-256, one for each text. So the examples of a whole
follow from those of its parts, in any order.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome

EXAMPLES_PER_RULE = 3
_EXCERPT_CHARACTERS = 200
_LEAD_IN_CHARACTERS = 40  # shown before the first change


class Example(NamedTuple):
    """A document that a rule removed or changed."""

    sha256: str  # of the text as it came
    id: str
    source: str
    origin: str
    because: str
    text: str  # its beginning; of a changed text from just before the first change
    changed_to: str | None  # the same stretch afterwards; None where removed


def text_hash(text: str) -> str:
    """The SHA-256 of a text's UTF-8, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def make_example(document: Document, outcome: Outcome) -> Example:
    """The example that a document gives for any rule that acted on it."""
    start, changed_to = 0, None
    if outcome.dropped is None:
        start = max(0, _first_change(document.text, outcome.document.text) - _LEAD_IN_CHARACTERS)
        changed_to = outcome.document.text[start : start + _EXCERPT_CHARACTERS]
    return Example(
        text_hash(document.text),
        document.id,
        document.source,
        str(document.metadata.get("origin", "")),
        outcome.because,
        document.text[start : start + _EXCERPT_CHARACTERS],
        changed_to,
    )


def smallest(*examples: Sequence[Example]) -> list[Example]:
    """The first few of all, by hash of the text; of equal texts the one with the least id."""
    by_text: dict[str, Example] = {}
    for example in sorted((each for part in examples for each in part), key=_order):
        by_text.setdefault(example.sha256, example)
    return list(by_text.values())[:EXAMPLES_PER_RULE]


def _order(example: Example) -> tuple[str, ...]:
    return (*example[:-1], example.changed_to or "")


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
