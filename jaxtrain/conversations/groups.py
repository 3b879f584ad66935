"""Answers as documents of a store: those that are compared stand side by side, within a length.

Each answer is a document of its own, the whole conversation with it at the end, and its mask is
what it alone says. All answers to one prompt read the same ids before it. Where one of them is too
long, the prompt of all is cut on the left, alike: whole turns first, then ids, by what the longest
needs. No answer is ever cut.
"""

import collections
import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from jaxtrain.chat.render import Mark
from jaxtrain.conversations.comparisons import PAIRS, RANKS, STEPS, Comparison
from jaxtrain.conversations.examples import DROP, LEFT, Example, Maker, turns_to_cut
from jaxtrain.conversations.forms import BadRow, Dropped, Message
from jaxtrain.conversations.steps import mark_steps

TOO_LONG: Final = (DROP, LEFT)
LIST, BEST_WORST = "list", "best_worst"
#: What a ranked list becomes: one group, every pair of it, or the pair of its ends.
RANKED: Final = (LIST, PAIRS, BEST_WORST)


class Answer(NamedTuple):
    """One document: a prompt with one answer."""

    example: Example
    value: float = 0.0
    labels: np.ndarray | None = None  # uint8 for each token: a step's verdict at its last


Group = Sequence[Answer]


def kind_of(comparison: Comparison, ranked: str) -> str:
    """Which kind of store a comparison goes into."""
    return PAIRS if comparison.kind == RANKS and ranked != LIST else comparison.kind


def make_groups(
    comparison: Comparison, maker: Maker, ranked: str = LIST
) -> tuple[list[Group], collections.Counter[str]]:
    """The groups that a comparison makes, and how many pairs of a list were left out, by reason.

    Args:
      maker: `too_long` is one of TOO_LONG.
      ranked: one of RANKED.

    Raises:
      BadRow: where the template refuses it, or an answer says nothing.
      Dropped: where it is too long, or there is nothing to choose between.
    """
    left_out: collections.Counter[str] = collections.Counter()
    if comparison.kind == STEPS:
        return [[_judged_steps(comparison, maker)]], left_out
    if comparison.kind == RANKS and ranked == BEST_WORST:
        comparison = _ends(comparison)
    examples = fitted(comparison, maker)
    answers = [Answer(*each) for each in zip(examples, comparison.values, strict=True)]
    if kind_of(comparison, ranked) != PAIRS or comparison.kind == PAIRS:
        for first, second in itertools.combinations(range(len(answers)), 2):
            if reason := _why_no_pair(comparison, answers, first, second):
                raise Dropped(reason)
        return [answers], left_out
    pairs: list[Group] = []
    for first, second in itertools.combinations(range(len(answers)), 2):
        if reason := _why_no_pair(comparison, answers, first, second):
            left_out[reason] += 1
            continue
        margin = comparison.values[first] - comparison.values[second]
        pairs.append([answers[first]._replace(value=margin), answers[second]._replace(value=0.0)])
    if not pairs:
        raise Dropped(left_out.most_common(1)[0][0])
    return pairs, left_out


def fitted(comparison: Comparison, maker: Maker, mark: Mark | None = None) -> list[Example]:
    """The answers of a comparison, all with the same prompt, and none longer than allowed.

    Raises:
      BadRow: where the template refuses it, or an answer says nothing.
      Dropped: where it is too long.
    """
    prompt = comparison.prompt
    examples = _rendered(comparison, prompt, maker, mark)
    if _excess(examples, maker) <= 0:
        return examples
    if maker.too_long == DROP:
        raise Dropped("too long")
    for head, start in turns_to_cut(prompt):
        examples = _rendered(comparison, prompt[:head] + prompt[start:], maker, mark)
        if _excess(examples, maker) <= 0:
            return [example._replace(cut="turns") for example in examples]
    excess = _excess(examples, maker)
    if excess >= num_prompt_tokens(examples[0]):
        raise Dropped("an answer alone is too long")
    return [example.within(slice(excess, None)) for example in examples]


def in_steps(comparison: Comparison, maker: Maker) -> tuple[Example, list[int]]:
    """An answer in steps, and where the last token of each is.

    Raises:
      BadRow, Dropped: as `fitted`.
    """
    (example,) = fitted(comparison, maker, mark_steps(comparison.step_ends))
    marks = example.marks
    assert marks is not None
    numbers = range(1, len(comparison.step_ends) + 1)
    return example, [int(np.flatnonzero(marks == number)[-1]) for number in numbers]


def num_prompt_tokens(example: Example) -> int:
    """How many tokens stand before the answer begins."""
    return int(example.mask.argmax())


def _excess(examples: Sequence[Example], maker: Maker) -> int:
    longest = max(len(example.ids) for example in examples)
    return 0 if maker.max_len is None else longest - maker.max_len


def _rendered(
    comparison: Comparison, prompt: Sequence[Message], maker: Maker, mark: Mark | None
) -> list[Example]:
    examples = [
        maker.answer(prompt, answer, comparison.tools, mark) for answer in comparison.answers
    ]
    first = examples[0]
    length = num_prompt_tokens(first)
    if not length:
        raise Dropped("all of it would be trained: it has no prompt")
    for example in examples[1:]:
        if num_prompt_tokens(example) != length or not np.array_equal(
            example.ids[:length], first.ids[:length]
        ):
            raise BadRow(
                "refused by the template",
                "the chat template writes the prompt otherwise before another answer, so that they "
                "cannot be compared",
            )
    return examples


def _why_no_pair(
    comparison: Comparison, answers: Sequence[Answer], first: int, second: int
) -> str | None:
    if np.array_equal(answers[first].example.ids, answers[second].example.ids):
        return "equal answers"
    if comparison.places and comparison.places[first] == comparison.places[second]:
        return "tied scores"
    return None


def _ends(comparison: Comparison) -> Comparison:
    """The best and the worst answer of a list alone."""
    return comparison._replace(
        answers=[comparison.answers[0], comparison.answers[-1]],
        values=(comparison.values[0], comparison.values[-1]),
        places=(comparison.places[0], comparison.places[-1]),
    )


def _judged_steps(comparison: Comparison, maker: Maker) -> Answer:
    """An answer with its mask and its labels on the last token of each step."""
    example, lasts = in_steps(comparison, maker)
    mask, labels = np.zeros(len(example.ids), bool), np.zeros(len(example.ids), np.uint8)
    mask[lasts], labels[lasts] = True, comparison.step_labels
    return Answer(example._replace(mask=mask), labels=labels)
