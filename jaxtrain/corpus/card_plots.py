"""Bar charts as SVG, drawn here: the same numbers give the same bytes, on any machine.

Two forms: bars side by side along an axis of named rows, and a histogram of one or more series.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

KEPT, REMOVED, AS_READ = "#4c78a8", "#e07b54", "#b8b8b8"
_INK, _FAINT = "#222222", "#dddddd"
_WIDTH = 760
_ROW = 22  # px from one row to the next
_BAR = 15
_TITLE = 30
_CHARACTER = 7.2  # px, of a wide 12 px font on average; wide characters take two
_LABEL = 340  # px, at most
_GRID = (0, 0.5, 1)  # lines at these parts of the highest count


class Bar(NamedTuple):
    """A row of a bar chart."""

    label: str
    parts: Sequence[tuple[float, str]]  # (length, colour), one after the other
    note: str  # at its end


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars, the longest as long as the space allows."""
    left = 12 + max((_text_width(_short(row.label)) for row in rows), default=0)
    right = 16 + max((_text_width(row.note) for row in rows), default=0)
    longest = max((sum(value for value, _ in row.parts) for row in rows), default=0) or 1
    scale = (_WIDTH - left - right - 8) / longest
    shapes = []
    for index, row in enumerate(rows):
        top = _TITLE + index * _ROW
        middle = top + _BAR - 3
        shapes.append(_text(left - 6, middle, _short(row.label), anchor="end"))
        at = float(left)
        for value, colour in row.parts:
            length = max(value * scale, 1) if value else 0  # what is there is seen
            shapes.append(_rectangle(at, top, length, _BAR, colour))
            at += length
        shapes.append(_text(at + 6, middle, row.note))
    shapes.append(_line(left, _TITLE - 4, left, _TITLE + len(rows) * _ROW - 3))
    return _svg(title, _TITLE + len(rows) * _ROW + 8, shapes)


def histogram(
    title: str, bins: Sequence[str], series: Mapping[str, tuple[Sequence[int], str]]
) -> str:
    """Vertical bars: for each bin one of each series, side by side.

    Args:
      bins: labels; the first, the last and as many between as there is room for are shown.
      series: name -> (count for each bin, colour).
    """
    height, highest = 190, _highest(series)
    left = 16 + max(_text_width(_count(highest * part)) for part in _GRID)
    base = _TITLE + 18 + height
    step = (_WIDTH - left - 16) / max(len(bins), 1)
    shapes = _grid(left, base, height, highest)
    for number, (counts, colour) in enumerate(series.values()):
        width = step * 0.84 / len(series)
        for index, count in enumerate(counts):
            tall = height * count / highest
            at = left + (index + 0.08) * step + number * width
            shapes.append(_rectangle(at, base - tall, width, tall, colour))
    every = max(1, -(-int(max(map(_text_width, bins), default=0) + 10) // max(int(step), 1)))
    for index in range(0, len(bins), every):
        shapes.append(_text(left + (index + 0.5) * step, base + 16, bins[index], anchor="middle"))
    at = float(left)
    for name, (_, colour) in series.items():
        shapes.append(_rectangle(at, _TITLE - 2, 10, 10, colour))
        shapes.append(_text(at + 15, _TITLE + 7, name))
        at += 36 + _text_width(name)
    return _svg(title, base + 26, shapes)


def _highest(series: Mapping[str, tuple[Sequence[int], str]]) -> int:
    return max((count for counts, _ in series.values() for count in counts), default=0) or 1


def _grid(left: float, base: float, height: float, highest: int) -> list[str]:
    """Lines across, with the count that each stands for."""
    shapes = []
    for part in _GRID:
        y = base - part * height
        shapes.append(_line(left, y, _WIDTH - 16, y))
        shapes.append(_text(left - 6, y + 4, _count(highest * part), anchor="end"))
    return shapes


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _svg(title: str, height: float, shapes: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {_WIDTH} {height:.0f}" font-family="sans-serif" font-size="12">'
    )
    ground = f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
    name = f'<text x="12" y="18" font-size="14" font-weight="bold">{_clean(title)}</text>'
    return "\n".join([head, ground, name, *shapes, "</svg>"]) + "\n"


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{_FAINT}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{_INK}">{_clean(text)}</text>'


def _clean(text: str) -> str:
    """Text that XML may hold: no control characters."""
    return escape("".join(c if unicodedata.category(c)[0] != "C" else "\ufffd" for c in text))


def _short(label: str) -> str:
    """A label cut to the width that labels may have."""
    if _text_width(label) <= _LABEL:
        return label
    length = len(label)
    while _text_width(label[:length]) > _LABEL - 2 * _CHARACTER:
        length -= 1
    return label[:length] + "…"


def _text_width(text: str) -> float:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return _CHARACTER * (len(text) + wide)
