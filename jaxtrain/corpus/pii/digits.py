"""Runs of digits with separators: what phone, card and identity numbers are looked for in.

One pass over a text finds them all, so a text with few digits costs one scan.
"""

import re
from collections.abc import Sequence

Run = tuple[int, int]  # start and end in the text; digit first, digit last

# Up to three separators between two digits, on one line. A pattern that begins with one character
# of a set is searched several times as fast as another.
_RUN = re.compile(r"[0-9](?:[ .()/\-]{0,3}[0-9]){3,}")

# One character for one, so that offsets stay right: what stands in text for ASCII digits, marks
# and spaces (full-width forms, typographic dashes, no-break spaces).
_FOLDED = {
    **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\uff0d", "-"),
    **dict.fromkeys("\u00a0\u2007\u2009\u202f\u3000", " "),
    **dict(zip("\uff08\uff09\uff0b\uff0e\uff20", "()+.@", strict=True)),
}
_FOLDABLE = re.compile("[" + "".join(_FOLDED) + "]")


def fold(text: str) -> str:
    """`text` with full-width digits, dashes and spaces as ASCII, of the same length."""
    if text.isascii() or not _FOLDABLE.search(text):
        return text
    for character in set(_FOLDABLE.findall(text)):  # far faster than `translate`
        text = text.replace(character, _FOLDED[character])
    return text


def digit_runs(text: str) -> Sequence[Run]:
    """Every longest run of four or more digits and the separators between them."""
    return [match.span() for match in _RUN.finditer(text)]


def digits_of(text: str) -> str:
    """The ASCII digits of `text`."""
    return "".join(character for character in text if "0" <= character <= "9")


def stands_alone(text: str, start: int, end: int) -> bool:
    """False where a number is part of a word, a decimal number or a number in thousands."""
    return not (_joined(text[max(0, start - 2) : start][::-1]) or _joined(text[end : end + 2]))


def _joined(outwards: str) -> bool:
    """Whether the two characters next to a number, nearest first, belong to the same token."""
    if not outwards:
        return False
    near = outwards[0]
    if near == "_" or (near.isascii() and near.isalnum()):
        return True
    return near in ".," and outwards[1:].isdigit()
