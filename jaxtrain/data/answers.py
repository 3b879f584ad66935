"""Kinds of answers that a store can hold, and what a group of each is.

A group is a run of documents, each a prompt with an answer, that are judged together: they stand in
one row, in order, and none is ever trained without the others.

    pairs    the chosen answer and the rejected one; the chosen one's value is the margin, else 0
    ranks    two or more answers to one prompt, best first; values are scores, else 0
    labels   k answers, each judged good (value 1) or bad (-1), and then k mismatched ones (value 0)
             that estimate how far the policy has moved: the prompt of each with the answer of the
             next; or one judged answer alone, without such an estimate
    steps    one answer, its mask on the last token of each step, whose label is 1 (good) or 0
"""

from collections.abc import Sequence
from typing import Final

PAIRS: Final = "pairs"
RANKS: Final = "ranks"
LABELS: Final = "labels"
STEPS: Final = "steps"
KINDS: Final = (PAIRS, RANKS, LABELS, STEPS)


def fault_of_group(kind: str, values: Sequence[float]) -> str | None:
    """What is wrong with a group of documents with these values; None where nothing is."""
    size = len(values)
    if kind == PAIRS:
        if size != 2:
            return f"a pair has a chosen and a rejected answer, and this group has {size}"
        if values[1]:
            return f"the rejected answer of a pair has no value, and this one has {values[1]:g}"
    elif kind == RANKS:
        if size < 2:
            return "a ranked list has two or more answers, and this group has 1"
    elif kind == LABELS:
        num_judged = 1 if size == 1 else size // 2
        if size > 1 and size % 2:
            return f"there are as many mismatched answers as judged ones, and this group has {size}"
        if any(value not in (1, -1) for value in values[:num_judged]):
            return f"judged answers have the value 1 or -1, and here are {list(values)}"
        if any(values[num_judged:]):
            return f"mismatched answers have the value 0, and here are {list(values)}"
    elif size != 1:
        return f"an answer judged by steps is a group of its own, and this group has {size}"
    return None
