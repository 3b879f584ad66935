"""Cutting a benchmark's items out of a text (Brown et al. 2020, appendix C)."""

from collections.abc import Iterable
from typing import NamedTuple

from jaxtrain.corpus.contamination.plain_words import Span

_MAX_WORD_CHARS = 30  # a cut moves outwards at most so far to leave no torn word
BETWEEN_PIECES = "\n\n"


class Margins(NamedTuple):
    """How much goes with a hit, and what a piece must have to stay; in characters."""

    window_chars: int
    min_piece_chars: int


def pieces(text: str, hits: Iterable[Span], margins: Margins) -> list[str]:
    """What is left of a text in order: hits and `window_chars` around them are gone.

    Pieces shorter than `min_piece_chars` are gone too.
    """
    left: list[str] = []
    begin = 0
    for hit in sorted(hits):
        end = _outwards(text, max(hit.start - margins.window_chars, 0), -1)
        if end > begin:
            left.append(text[begin:end])
        begin = max(begin, _outwards(text, min(hit.stop + margins.window_chars, len(text)), 1))
    left.append(text[begin:])
    stripped = (piece.strip() for piece in left)
    return [piece for piece in stripped if len(piece) >= margins.min_piece_chars]


def _outwards(text: str, cut: int, step: int) -> int:
    """The nearest end of a word at or beyond `cut`; `cut` itself where there is none near."""
    for at in range(cut, cut + step * _MAX_WORD_CHARS, step):
        if at <= 0 or at >= len(text):
            return min(max(at, 0), len(text))
        if text[at - 1].isspace() or text[at].isspace():
            return at
    return cut
