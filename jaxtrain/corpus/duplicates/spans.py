"""Texts as lines, paragraphs or sentences, and the hashes by which a span of them is known.

Pieces put one after the other are the text, character for character. A span is one line, one
paragraph, or three sentences in a row (C4, Raffel et al. 2020). Spans that differ in case or white
space only are the same.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxtrain.corpus.words import CLOSING_MARKS, LATIN_ENDS, OTHER_ENDS

LINES = "lines"
PARAGRAPHS = "paragraphs"
SENTENCES = "sentences"
WIDTHS: Mapping[str, int] = {LINES: 1, PARAGRAPHS: 1, SENTENCES: 3}  # pieces in a span

_CLOSING = f"[{re.escape(CLOSING_MARKS)}]*"
_BREAKS = {
    LINES: re.compile(r"\n"),
    PARAGRAPHS: re.compile(r"\n[^\S\n]*\n\s*"),
    SENTENCES: re.compile(rf"[{LATIN_ENDS}]+{_CLOSING}\s+|[{OTHER_ENDS}]+{_CLOSING}\s*|\n\s*"),
}


class Spans(NamedTuple):
    """The spans of a text that count."""

    hashes: np.ndarray  # uint64, (spans, 2)
    positions: np.ndarray  # int64: of the first piece of each, counted among filled pieces


def split_pieces(text: str, unit: str) -> list[str]:
    """The lines, paragraphs or sentences of a text, each with the white space after it."""
    ends = [match.end() for match in _BREAKS[unit].finditer(text)]
    if not ends or ends[-1] < len(text):
        ends.append(len(text))
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def find_spans(text: str, unit: str, min_bytes: int) -> Spans:
    """The spans of a text with at least `min_bytes` in UTF-8, as compared."""
    width = WIDTHS[unit]
    filled = [piece for piece in map(_as_compared, split_pieces(text, unit)) if piece]
    digests, positions = [], []
    for position in range(len(filled) - width + 1):
        span = " ".join(filled[position : position + width]).encode()
        if len(span) >= min_bytes:
            digests.append(hashlib.blake2b(span, digest_size=16).digest())
            positions.append(position)
    hashes = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)
    return Spans(hashes, np.array(positions, np.int64))


def has_piece(text: str, unit: str, min_bytes: int) -> bool:
    """Whether a line, paragraph or sentence of the text has at least `min_bytes`, as compared."""
    return any(len(_as_compared(piece).encode()) >= min_bytes for piece in split_pieces(text, unit))


def without_repeats(
    text: str, unit: str, repeated: np.ndarray, firsts: np.ndarray
) -> tuple[str, int]:
    """The text without its repeated spans, and how many pieces are gone.

    Args:
      repeated: positions of spans that stand elsewhere and go.
      firsts: positions of spans that stand elsewhere too, but stay here: no piece of them goes.
    """
    pieces = split_pieces(text, unit)
    filled = [number for number, piece in enumerate(pieces) if piece.strip()]
    goes = np.zeros(len(filled), bool)
    for offset in range(WIDTHS[unit]):
        goes[repeated + offset] = True
    for offset in range(WIDTHS[unit]):
        goes[firsts + offset] = False
    gone = {filled[number] for number in np.flatnonzero(goes)}
    if not gone:
        return text, 0
    left = "".join(piece for number, piece in enumerate(pieces) if number not in gone)
    return (left.rstrip() if filled[-1] in gone else left), len(gone)


def _as_compared(piece: str) -> str:
    return " ".join(piece.lower().split())
