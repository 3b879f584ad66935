"""A string that remembers, character by character, which message it came from.

A chat template cuts, strips and joins what people wrote with markup of its own. Afterwards the two
must be told apart exactly: `<|im_end|>` typed by a user is text, written by the template it ends a
turn, and only what the assistant said is trained. Searching the result for the pieces would guess;
`Tracked` carries the answer through every operation that templates use. An operation that is not
known here gives a plain string, whose characters count as markup: `template.py` finds that out.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, SupportsIndex

import numpy as np

#: Tag of what the template itself says.
MARKUP: Final = -4

MAX_CHARS: Final = 50_000_000  # of one text; a template that loops would fill the memory
MAX_PARTS: Final = 1_000_000  # of one value


class TooLong(ValueError):
    """A text, or a list, that no conversation has."""

    def __init__(self) -> None:
        super().__init__(f"writes more than {MAX_CHARS:,} characters")


def tag_of(message: int, *, marker: bool = False) -> int:
    """The tag of text from message number `message`.

    Args:
      marker: the text stands for a control token although it is in a message (see `render.py`).
    """
    return message << 2 | marker << 1


class Tracked(str):
    """A string with a tag for each character."""

    tags: "array[int]"

    def __new__(cls, text: str, tags: "array[int] | int") -> "Tracked":
        """Args: tags: one for each character, or one for all."""
        self = super().__new__(cls, text)
        self.tags = array("i", [tags]) * len(self) if isinstance(tags, int) else tags
        assert len(self.tags) == len(self), (len(self.tags), len(self))
        return self

    @classmethod
    def of(cls, value: Any) -> "Tracked":
        """The text of a value; markup where it has no origin."""
        return join([value])

    def __str__(self) -> str:
        return self  # str(x) is what Jinja does to every value; it must not forget

    def as_generation(self) -> "Tracked":
        """The same text, marked as what the model generates."""
        return Tracked(self._plain, array("i", [tag | 1 for tag in self.tags]))

    @property
    def _plain(self) -> str:
        return str.__str__(self)

    def _cut(self, start: int, stop: int) -> "Tracked":
        return Tracked(self._plain[start:stop], self.tags[start:stop])

    def __add__(self, other: Any) -> Any:
        return join((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return join((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> "Tracked":
        return Tracked(self._plain * times, self.tags * int(times))

    def __rmul__(self, times: SupportsIndex) -> "Tracked":
        return self * times

    def __getitem__(self, key: Any) -> "Tracked":
        tags = self.tags[key]
        return Tracked(self._plain[key], tags)

    def __iter__(self) -> Iterator["Tracked"]:
        return (self._cut(at, at + 1) for at in range(len(self)))

    def lstrip(self, chars: str | None = None) -> "Tracked":
        return self._cut(len(self) - len(self._plain.lstrip(chars)), len(self))

    def rstrip(self, chars: str | None = None) -> "Tracked":
        return self._cut(0, len(self._plain.rstrip(chars)))

    def strip(self, chars: str | None = None) -> "Tracked":
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> "Tracked":
        return self._cut(len(self) - len(self._plain.removeprefix(prefix)), len(self))

    def removesuffix(self, suffix: str) -> "Tracked":
        return self._cut(0, len(self._plain.removesuffix(suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(self._plain.split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(self._plain.rsplit(sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines, start = [], 0
        for kept, bare in zip(
            self._plain.splitlines(keepends=True), self._plain.splitlines(), strict=True
        ):
            lines.append(self._cut(start, start + len(kept if keepends else bare)))
            start += len(kept)
        return list(lines)

    def partition(self, sep: str) -> tuple[str, str, str]:
        at = self._plain.find(sep)
        return (self, Tracked("", 0), Tracked("", 0)) if at < 0 else self._three(at, len(sep))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        at = self._plain.rfind(sep)
        return (Tracked("", 0), Tracked("", 0), self) if at < 0 else self._three(at, len(sep))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> "Tracked":
        """What is put into content counts as part of what it replaces; into markup, as it was."""
        if len(self) + self._plain.count(old) * len(new) > MAX_CHARS:
            raise TooLong
        parts: list[str] = []
        start = 0
        for done, match in enumerate(re.finditer(re.escape(old), self._plain)):
            if 0 <= int(count) <= done:
                break
            at, stop = match.span()
            tag = self.tags[at] if at < len(self) else MARKUP
            keeps = tag == MARKUP and isinstance(new, Tracked)
            parts += [self._cut(start, at), new if keeps else Tracked(str.__str__(new), tag)]
            start = stop
        return join([*parts, self._cut(start, len(self))])

    def join(self, parts: Iterable[str]) -> "Tracked":
        return joined(self, parts)

    def lower(self) -> "Tracked":
        return self._by_character(str.lower)

    def upper(self) -> "Tracked":
        return self._by_character(str.upper)

    def title(self) -> "Tracked":
        return self._of_equal_length(self._plain.title())

    def capitalize(self) -> "Tracked":
        return self._of_equal_length(self._plain.capitalize())

    def _by_character(self, change: Any) -> "Tracked":
        return self._of_equal_length(change(self._plain))

    def _of_equal_length(self, text: str) -> "Tracked":
        if len(text) == len(self):
            return Tracked(text, self.tags)
        return Tracked(text, self.tags[0])  # ß to SS: which letter came from which is not known

    def _three(self, at: int, length: int) -> tuple[str, str, str]:
        return self._cut(0, at), self._cut(at, at + length), self._cut(at + length, len(self))

    def _located(self, pieces: list[str], sep: str | None) -> list[str]:
        """The pieces of a split at their places, which follow each other in order."""
        cuts: list[str] = []
        start = 0
        for piece in pieces:
            at = start if sep is not None else self._plain.index(piece, start)
            cuts.append(self._cut(at, at + len(piece)))
            start = at + len(piece) + (len(sep) if sep is not None else 0)
        return cuts


def join(parts: Iterable[Any]) -> Tracked:
    """The parts in a row; what is no `Tracked` is markup."""
    tags = array("i")
    texts = []
    for part in parts:
        if isinstance(part, (dict, list, tuple)):
            strings(part)  # not too many of them
        text = str(part)
        texts.append(str.__str__(text))
        if len(tags) + len(text) > MAX_CHARS:
            raise TooLong
        tags += text.tags if isinstance(text, Tracked) else array("i", [MARKUP]) * len(text)
    return Tracked("".join(texts), tags)


def joined(separator: str, parts: Iterable[Any]) -> Tracked:
    """The parts with `separator` between them."""
    with_separators: list[Any] = []
    for part in parts:
        with_separators += [separator, part]
    return join(with_separators[1:])


def tracked(value: Any, tag: int) -> Any:
    """A message's value with every string in it tagged, if it is not yet; keys stay plain."""
    if isinstance(value, Tracked):
        return value
    if isinstance(value, str):
        return Tracked(value, tag)
    if isinstance(value, dict):
        return {key: tracked(each, tag) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [tracked(each, tag) for each in value]
    return value


def strings(value: Any) -> list[Tracked]:
    """The tagged strings in a value.

    Raises:
      TooLong: where it has too many parts: a list may hold another twice, and that one another …
    """
    found: list[Tracked] = []
    waiting, num_seen = [value], 0
    while waiting:
        each = waiting.pop()
        num_seen += 1
        if isinstance(each, Tracked):
            found.append(each)
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            waiting += each
        if num_seen + len(waiting) > MAX_PARTS:
            raise TooLong
    return found


def origins(text: Tracked) -> np.ndarray:
    """The message that each character came from (int32), -1 for markup."""
    return np.asarray(text.tags, np.int32) >> 2


def places(text: Tracked, message: int) -> list[int]:
    """Where the characters from one message stand."""
    return np.flatnonzero(origins(text) == message).tolist()


def may_be_control(text: Tracked) -> np.ndarray:
    """Whether each character can be part of a control token: markup, or a marker in a message."""
    tags = np.asarray(text.tags, np.int32)
    return (tags >> 2 < 0) | (tags & 2 > 0)


def in_generation(text: Tracked) -> np.ndarray:
    """Whether each character stood between {% generation %} and {% endgeneration %}."""
    return np.asarray(text.tags, np.int32) & 1 > 0
