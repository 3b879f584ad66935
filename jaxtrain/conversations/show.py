"""An example for people to look at: each token coloured by who says it, trained ones marked."""

from collections.abc import Mapping
from typing import Final

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


def shown(example: Example, tokenizer: Tokenizer, title: str) -> Text:
    """The decoded ids; what is trained stands in reverse and between ⟦ and ⟧."""
    num_trained = int(example.mask.sum())
    text = Text(f"{title}: {num_trained:,} of {len(example.ids):,} tokens trained", "bold")
    text.append(f", cut by {example.cut}\n" if example.cut else "\n")
    controls = set(tokenizer.special_token_ids)
    decoder = tokenizer.stream()
    is_open = False
    for number, is_trained, role in zip(
        example.ids.tolist(), example.mask.tolist(), example.roles, strict=True
    ):
        if is_trained != is_open:
            text.append(decoder.finish() + (_OPEN if is_trained else _CLOSE), "bold")
            decoder, is_open = tokenizer.stream(), is_trained
        style = _COLOURS[role] + (" reverse" if is_trained else "")
        is_control = number in controls
        piece = decoder.finish() + tokenizer.token(number) if is_control else decoder.push(number)
        text.append(piece, f"{style} bold" if is_control else style)
        if is_control:
            decoder = tokenizer.stream()
    text.append(decoder.finish() + (_CLOSE if is_open else "") + "\n")
    return text


def legend() -> Text:
    """Which colour is whose."""
    text = Text("who says it: ")
    for role in ("system", "user", "tool", "assistant"):
        text.append(role, _COLOURS[role]).append(" ")
    text.append("template", _COLOURS[None])
    return text.append(f"; {_OPEN}trained{_CLOSE}\n")
