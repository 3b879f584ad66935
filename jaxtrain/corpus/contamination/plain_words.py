"""The words of a text as they are compared with a benchmark: without all that a copy may change.

Case, punctuation, white space, compatibility forms (full-width letters, ligatures) and characters
that are not seen make no difference. A character of a script that is written without spaces is a
word. The text itself stays as it is: this is for matching only.
"""

import functools
import re
import sys
import unicodedata
from typing import NamedTuple

from jaxtrain.corpus.words import split_words

_APOSTROPHES = "'’‘ʼ`"
# What has no width, and selectors of a variant of the character before them.
_UNSEEN = (
    *map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"),
    *range(0xFE00, 0xFE10),
    *range(0xE0100, 0xE01F0),
)
# What stands behind an apostrophe: "Janet's" is "Janets" is "Janet s", whatever took its place.
_CLITICS = frozenset(("s", "t", "d", "m", "ll", "re", "ve"))
_BEFORE_CLITIC = re.compile(rf"'(?=(?:{'|'.join(sorted(_CLITICS))})(?!\w))")
_ASCII_TABLE = bytes(
    ord("'") if chr(code) in _APOSTROPHES else ord(chr(code).lower()) if chr(code).isalnum() else 32
    for code in range(128)
) + bytes(128)
# Pieces whose words are those of the whole: composition never reaches over their ends.
_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_PIECES = (re.compile(rf"[{_HAN}]|[^\s{_HAN}]+"), re.compile(r"\S+"))


class Span(NamedTuple):
    """Characters [start, stop) of a text."""

    start: int
    stop: int


def plain_words(text: str) -> list[str]:
    """The words of a text in order, as they are compared."""
    words = _split(text)
    if _CLITICS.isdisjoint(words):
        return words
    joined: list[str] = []
    for word in words:
        if joined and word in _CLITICS:
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def word_spans(text: str) -> list[Span]:
    """Where in the text each of `plain_words(text)` stands, or the piece that it is in."""
    words = _split(text)
    for pieces in _PIECES:
        spans, found = [], []
        for piece in pieces.finditer(text):
            inside = _split(piece.group())
            found += inside
            spans += [Span(*piece.span())] * len(inside)
        if found == words:
            break
    else:
        raise AssertionError(f"words of the pieces are not those of the text: {text[:200]!r}")
    joined: list[Span] = []
    for word, span in zip(words, spans, strict=True):
        if joined and word in _CLITICS:
            joined[-1] = Span(joined[-1].start, span.stop)
        else:
            joined.append(span)
    return joined


def _split(text: str) -> list[str]:
    if text.isascii():
        return _without_apostrophes(text.encode().translate(_ASCII_TABLE).decode()).split()
    if not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    return split_words(_without_apostrophes(text.translate(_plain_characters())))


def _without_apostrophes(text: str) -> str:
    return _BEFORE_CLITIC.sub("", text).replace("'", " ") if "'" in text else text


@functools.cache
def _plain_characters() -> dict[int, str]:
    """What each character that does not stay as it is becomes."""
    table = {}
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        if unicodedata.category(letter) in ("Cn", "Co", "Cs"):  # no characters: most of the range
            continue
        plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", letter).casefold())
        plain = "".join(map(_letter_or_space, plain))
        if plain != letter:
            table[code] = plain
    table |= dict.fromkeys(_UNSEEN, "") | dict.fromkeys(map(ord, _APOSTROPHES), "'")
    return table


def _letter_or_space(letter: str) -> str:
    category = unicodedata.category(letter)
    return " " if category[0] in "PSZ" or category == "Cc" else letter
