"""Figures of runs as tables of a page."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


class Line(NamedTuple):
    """One line of a table: one method on one held-out set."""

    cells: Mapping[str, str]  # by heading, what was run
    scores: Mapping[str, tuple[float, Sequence[float]]]  # by heading: before, after by seed
    secs: Sequence[float]


def tables(lines: Sequence[Line]) -> str:
    """Markdown: lines with the same headings in one table, in the order of their first."""
    by_headings: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        by_headings.setdefault((*line.cells, *line.scores, "CPU s"), []).append(line)
    return "\n\n".join(_table(headings, found) for headings, found in by_headings.items())


def _table(headings: Sequence[str], lines: Sequence[Line]) -> str:
    rows = [headings, ["---"] * len(headings)]
    for line in lines:
        scores = [f"{before:.3f} → {spread(after)}" for before, after in line.scores.values()]
        rows.append([*line.cells.values(), *scores, f"{statistics.mean(line.secs):.0f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def spread(values: Sequence[float]) -> str:
    """Mean and, of several values, the least and the largest."""
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def put_into(page: str, text: str) -> str:
    """The page with `text` between its two marks.

    Raises:
      ValueError: where the page has not each of them once, in order.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in tail:
        raise ValueError(f"the page must have {BEGIN} and then {END}, once each")
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"
