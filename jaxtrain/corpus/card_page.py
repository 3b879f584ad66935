"""A page of Markdown with charts, and values written for it."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

PLOTS = "card"  # folder of the charts
MAX_ROWS = 30  # of a chart or table: what follows is summed up
_EXCERPT_CHARACTERS = 120
_NUMBER = re.compile(r"(?:\\?[<+−-] ?)?[\d,.]+(?:e[+-]?\d+)?(?: %)?|")  # or nothing
_SHOWN_AS = {"\n": "⏎", "\t": "⇥"}


class Page:
    """Blocks of Markdown and the charts that they show."""

    def __init__(self) -> None:
        self.blocks: list[str] = ["# Data card"]
        self.plots: dict[str, str] = {}

    def add(self, *blocks: str) -> None:
        self.blocks += blocks

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table; columns of numbers to the right, but for the first."""
        body = [[cell(value) for value in row] for row in rows]
        if body:
            rule = ["---"] + [
                "---:" if all(map(_NUMBER.fullmatch, column)) else "---"
                for column in list(zip(*body, strict=True))[1:]
            ]
            self.add("\n".join("| " + " | ".join(row) + " |" for row in [list(heads), rule, *body]))

    def plot(self, name: str, svg: str, title: str) -> None:
        stem = re.sub(r"[^\w-]+", "_", name)
        file = f"{stem}.svg" if f"{stem}.svg" not in self.plots else f"{stem}-{len(self.plots)}.svg"
        self.plots[file] = svg
        self.add(f"![{title}]({PLOTS}/{file})")


def percent(part: float, whole: float) -> str:
    """A share; nothing where there is no whole."""
    if not whole:
        return ""
    if 0 < part / whole < 0.001:
        return "< 0.1 %"
    return f"{100 * part / whole:.1f} %"


def cell(value: Any) -> str:
    """A value in running Markdown or in a table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = " ".join(str(value).split())
    return re.sub(r"[\\`*<|\[\]]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


def code(text: str, exact: bool = False) -> str:
    """An excerpt as code on one line; exact: white space and what cannot be seen are shown."""
    line = "".join(map(_visible, text)) if exact else " ".join(text.split())
    line = line if len(line) <= _EXCERPT_CHARACTERS else line[:_EXCERPT_CHARACTERS] + "…"
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"`{line}`"


def _visible(character: str) -> str:
    if character in _SHOWN_AS:
        return _SHOWN_AS[character]
    seen = character == " " or unicodedata.category(character)[0] not in "CZ"
    return character if seen else f"\\u{{{ord(character):x}}}"
