"""How far a pass over a file has come: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
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
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn(f"[bold]{what}"), BarColumn(), *columns) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda done_bytes: bar.update(task, completed=done_bytes)


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
