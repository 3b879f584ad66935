"""A list of words that a document must not hold, read from a file and found quickly."""

import re
from collections.abc import Iterable
from typing import Self

from jaxtrain.corpus.words import count_words

_TOKEN = re.compile(r"\w+")


class BadWords:
    """Finds listed words and phrases in lower-case text.

    One in a script with spaces is found as whole words only (`ass` is not in `class`); one in a
    script without (Chinese, Thai …) wherever it stands.
    """

    def __init__(self, entries: Iterable[str]):
        self._words: set[str] = set()
        self._phrases: dict[str, re.Pattern[str] | None] = {}
        for entry in entries:
            entry = entry.lower()
            if count_words(entry).num_unspaced:
                self._phrases[entry] = None
            elif _TOKEN.fullmatch(entry):
                self._words.add(entry)
            else:
                self._phrases[entry] = re.compile(rf"(?<!\w){re.escape(entry)}(?!\w)")

    @classmethod
    def read(cls, path: str) -> Self:
        """One entry a line of UTF-8; blank lines and those that begin with # are passed by.

        Raises:
          ValueError: the file is not UTF-8, or holds no entry.
        """
        try:
            with open(path, encoding="utf-8") as file:
                lines = [line.strip() for line in file.read().split("\n")]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 at byte {error.start}; convert it") from error
        entries = [line for line in lines if line and not line.startswith("#")]
        if not entries:
            raise ValueError(f"{path}: no word in it; write one a line")
        return cls(entries)

    def find(self, lowered: str) -> str | None:
        """The first (in order of the alphabet) listed entry that the text holds, or None."""
        found = self._words.intersection(_TOKEN.findall(lowered))
        for phrase, pattern in self._phrases.items():
            if phrase in lowered and (pattern is None or pattern.search(lowered)):
                found.add(phrase)
        return min(found, default=None)
