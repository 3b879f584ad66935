"""How far a pass over a file has come: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_LINE_EVERY_SECS = 15


@contextmanager
def show_bytes(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A function that is told how many of `total_bytes` are done and shows it on stderr."""
    if not sys.stderr.isatty():
        yield _lines(what, total_bytes)
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _bar(what, *columns) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda done_bytes: bar.update(task, completed=done_bytes)


@contextmanager
def show_count(what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A function that is told how many of `total` things are done and shows it on stderr."""
    if not sys.stderr.isatty():
        yield _count_lines(what, total, unit)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with _bar(what, *columns) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def _bar(what: str, *columns: ProgressColumn, expand: bool = False) -> Progress:
    """On stderr, so that what a command prints can be read by another."""
    title = TextColumn(f"[bold]{what}")
    return Progress(title, *columns, console=Console(stderr=True), expand=expand)


class Done(NamedTuple):
    """How far work on documents has come."""

    documents: int
    bytes: int  # of text
    frac: float  # of the whole, as far as that can be told


@contextmanager
def show_documents(what: str) -> Iterator[Callable[[Done], None]]:
    """A function that is told how much is done and shows it with rates and time left on stderr.

    Rates count from the first call on: work of an earlier start is not this one's speed.
    """
    meter = _Meter()
    if not sys.stderr.isatty():
        yield _document_lines(what, meter)
        return
    # The bar takes what the figures leave: they fit into 80 columns, and time left is the last.
    columns = (BarColumn(None), TaskProgressColumn(), TextColumn("{task.fields[state]}"))
    with _bar(what, *columns, expand=True) as bar:
        task = bar.add_task("", total=1.0, state="")

        def show(done: Done) -> None:
            meter.update(done)
            bar.update(task, completed=done.frac, state=meter.rates() or meter.amounts())

        yield show


class _Meter:
    """Amounts, rates and time left of what has been done since the first update."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._first = self._done = Done(0, 0, 0.0)

    def update(self, done: Done) -> None:
        if self._started is None:
            self._started, self._first = time.monotonic(), done
        self._done = done

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.amounts(), self.rates())))

    def amounts(self) -> str:
        """What is done, of earlier starts too."""
        return f"{self._done.documents:,} documents, {self._done.bytes / 1e6:,.1f} MB"

    def rates(self) -> str:
        """Rates and time left, "" before anything can be said of them."""
        secs = 0.0 if self._started is None else time.monotonic() - self._started
        done, first = self._done, self._first
        if secs <= 0 or done.frac <= first.frac:
            return ""
        left = secs * max(1 - done.frac, 0) / (done.frac - first.frac)
        return (
            f"{(done.documents - first.documents) / secs:,.0f} documents/s, "
            f"{(done.bytes - first.bytes) / 1e6 / secs:.1f} MB/s, {left:,.0f} s left"
        )


def _document_lines(what: str, meter: _Meter) -> Callable[[Done], None]:
    shown = time.monotonic()

    def show(done: Done) -> None:
        nonlocal shown
        meter.update(done)
        if time.monotonic() - shown >= _LINE_EVERY_SECS:
            shown = time.monotonic()
            print(f"{what}: {meter}", file=sys.stderr, flush=True)

    return show


def _count_lines(what: str, total: int, unit: str) -> Callable[[int], None]:
    started = shown = time.monotonic()

    def show(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= _LINE_EVERY_SECS:
            shown = now
            left = (total - done) * (now - started) / max(done, 1)
            print(
                f"{what}: {done:,} of {total:,} {unit}, {left:,.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    return show


def _lines(what: str, total_bytes: int) -> Callable[[int], None]:
    started = shown = time.monotonic()

    def show(done_bytes: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= _LINE_EVERY_SECS:
            shown = now
            rate = done_bytes / (now - started)
            print(
                f"{what}: {done_bytes / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB, "
                f"{rate / 1e6:.1f} MB/s, {(total_bytes - done_bytes) / rate:,.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    return show
