"""Examples for people to look at: each token coloured by who says it, trained ones marked."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from jaxtrain.conversations.examples import Example
from jaxtrain.tokenizer.tokenizer import Tokenizer

_COLOURS: Final[Mapping[str | None, str]] = {
    None: "bright_black",  # the template
    "system": "magenta",
    "developer": "magenta",
    "tools": "magenta",
    "user": "cyan",
    "tool": "yellow",
    "assistant": "green",
    "text": "green",
}
_OPEN, _CLOSE = "⟦", "⟧"  # around what is trained: for whoever sees no colours
_RIGHT, _WRONG = "✓", "✗"  # after a step
_MAX_COLUMNS = 3  # side by side


class Shown(NamedTuple):
    """An answer, what is known of it, and the labels of its steps."""

    example: Example
    title: str
    labels: np.ndarray | None = None


def shown(example: Example, tokenizer: Tokenizer, title: str) -> Text:
    """The decoded ids; what is trained stands in reverse and between ⟦ and ⟧."""
    return _head(example, title).append_text(_decoded(example, tokenizer, 0)).append("\n")


def shown_group(answers: Sequence[Shown], tokenizer: Tokenizer) -> Group:
    """Examples that belong together: answers side by side below the prompt that they share."""
    first = answers[0].example
    length = int(first.mask.argmax())
    share = all(
        np.array_equal(each.example.ids[:length], first.ids[:length]) for each in answers[1:]
    )
    if not share or not 1 < len(answers) <= _MAX_COLUMNS:
        return Group(*(_with_head(each, tokenizer, 0) for each in answers))
    table = Table.grid(*("" for _ in answers), padding=(0, 2), expand=True)
    for column in table.columns:
        column.ratio = 1
    table.add_row(*(_with_head(each, tokenizer, length) for each in answers))
    return Group(_decoded(first, tokenizer, 0, length), table)


def legend() -> Text:
    """Which colour is whose."""
    text = Text("who says it: ")
    for role in ("system", "user", "tool", "assistant"):
        text.append(role, _COLOURS[role]).append(" ")
    text.append("template", _COLOURS[None])
    return text.append(f"; {_OPEN}trained{_CLOSE}\n")


def _with_head(answer: Shown, tokenizer: Tokenizer, start: int) -> Text:
    head = _head(answer.example, answer.title)
    body = _decoded(answer.example, tokenizer, start, labels=answer.labels)
    return head.append_text(body).append("\n")


def _head(example: Example, title: str) -> Text:
    num_trained = int(example.mask.sum())
    text = Text(f"{title}: {num_trained:,} of {len(example.ids):,} tokens trained", "bold")
    return text.append(f", cut by {example.cut}\n" if example.cut else "\n")


def _decoded(
    example: Example,
    tokenizer: Tokenizer,
    start: int,
    stop: int | None = None,
    labels: np.ndarray | None = None,
) -> Text:
    """The tokens `start:stop`; a step is followed by its label."""
    text = Text()
    controls = set(tokenizer.special_token_ids)
    decoder = tokenizer.stream()
    weight = 0.0
    weights = example.mask.astype(np.float32) if example.weights is None else example.weights
    for at in range(start, len(example.ids) if stop is None else stop):
        number = int(example.ids[at])
        if weights[at] != weight:
            text.append(decoder.finish() + _border(weight, float(weights[at])), "bold")
            decoder, weight = tokenizer.stream(), float(weights[at])
        style = _COLOURS[example.roles[at]] + (" reverse" if weight else "")
        is_control = number in controls
        piece = decoder.finish() + tokenizer.token(number) if is_control else decoder.push(number)
        text.append(piece, f"{style} bold" if is_control else style)
        if is_control:
            decoder = tokenizer.stream()
        if labels is not None and example.mask[at]:
            text.append(decoder.finish() + (_RIGHT if labels[at] else _WRONG), "bold")
            decoder = tokenizer.stream()
    return text.append(decoder.finish() + (_CLOSE if weight else ""))


def _border(before: float, after: float) -> str:
    """What stands between tokens of two weights; another than 1 is said."""
    close, opened = _CLOSE if before else "", _OPEN if after else ""
    return close + opened + (f"×{after:g} " if after not in (0, 1) else "")
