"""Where metrics go: `metrics.jsonl`, TensorBoard and the terminal.

The writers have the methods of clu's `MetricWriter`, so that one can stand in for the other; clu's
own module imports TensorFlow (docs/decisions/0002-metric-writers.md).
"""

import json
import os
import pathlib
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Scalars = Mapping[str, Any]


class Writer(Protocol):
    """The part of clu's `MetricWriter` that training uses."""

    def write_scalars(self, step: int, scalars: Scalars) -> None:
        """Writes the numbers of one step."""
        ...

    def flush(self) -> None:
        """Hands everything on."""
        ...

    def close(self) -> None:
        """Flushes and lets go."""
        ...


class MultiWriter:
    """Writes to several."""

    def __init__(self, writers: Sequence[Writer]):
        self._writers = writers

    def write_scalars(self, step: int, scalars: Scalars) -> None:
        for writer in self._writers:
            writer.write_scalars(step, scalars)

    def flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class JsonLinesWriter:
    """One JSON object a line.

    Continuing at step n moves later lines, which will be made again, to NAME.dropped.jsonl.
    """

    def __init__(self, path: pathlib.Path, continue_at: int):
        kept, dropped = [], []
        for number, line in enumerate(_whole_lines(path), 1):
            is_kept = _step_of(line, path, number) <= continue_at
            (kept if is_kept else dropped).append(line)
        if dropped:
            with path.with_suffix(".dropped.jsonl").open("a") as file:
                file.writelines(dropped)
        part = path.with_suffix(".part")
        part.write_text("".join(kept))
        part.replace(path)
        self._file = path.open("a", buffering=1)

    def write_scalars(self, step: int, scalars: Scalars):
        try:
            self._file.write(json.dumps({"step": step, **_plain(scalars)}) + "\n")
        except OSError as error:
            raise _refused(self._file.name, error) from error

    def flush(self):
        self._file.flush()

    def close(self):
        self._file.close()


class TensorBoardWriter:
    """An event file under a directory, written at once: a full disk is an error of that step."""

    def __init__(self, directory: pathlib.Path, continue_at: int):
        # Here, since the package imports torch where it finds it.
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import masked_crc32c

        self._events: Any = event_pb2
        self._summaries, self._crc = summary_pb2, masked_crc32c
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"events.out.tfevents.{time.time_ns()}"
        self._file = self._path.open("wb", buffering=0)
        self._write(file_version="brain.Event:2")
        if continue_at:  # what an earlier process wrote after this step is hidden
            log = self._events.SessionLog
            restart = log(status=log.START)
            self._write(step=continue_at + 1, session_log=restart)

    def write_scalars(self, step: int, scalars: Scalars):
        numbers = {k: v for k, v in _plain(scalars).items() if isinstance(v, (int, float))}
        value = self._summaries.Summary.Value
        values = [value(tag=name, simple_value=number) for name, number in numbers.items()]
        self._write(step=step, summary=self._summaries.Summary(value=values))

    def _write(self, **fields: Any) -> None:
        """Appends one record: length, its checksum, the event, its checksum."""
        data = self._events.Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(data))
        sums = (struct.pack("<I", self._crc(part)) for part in (length, data))
        try:
            self._file.write(b"".join((length, next(sums), data, next(sums))))
        except OSError as error:
            raise _refused(self._path, error) from error

    def flush(self):
        """Nothing is held back."""

    def close(self):
        self._file.close()


class Terminal:
    """A progress bar on a terminal, one line per logged step elsewhere; nothing if silent."""

    def __init__(self, num_steps: int, start: int, silent: bool = False):
        self._num_steps, self._silent = num_steps, silent
        self._progress = None
        if sys.stdout.isatty() and not silent:
            self._progress = Progress(
                TextColumn("[bold]step"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
            )
            self._task = self._progress.add_task(
                "", total=num_steps, completed=start, text="compiling …"
            )
            self._progress.start()

    def step(self, step: int, scalars: Scalars) -> None:
        """Shows a logged step."""
        text = (
            f"loss {scalars['loss']:.4f}  lr {scalars['lr']:.2e}  "
            f"{scalars['tokens_per_sec']:,.0f} tokens/s"
        )
        if self._progress:
            self._progress.update(self._task, completed=step, text=text)
            return
        left = (self._num_steps - step) * scalars["step_secs"]
        self.say(f"step {step}/{self._num_steps}  {text}  {_clock(left)} left")

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if self._progress:
            self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)
        elif not self._silent:
            try:
                print(line, flush=True)
            except BrokenPipeError:  # whoever read us has gone; training has not
                self._silent = True
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def close(self) -> None:
        """Leaves the bar as it stands."""
        if self._progress:
            self._progress.stop()


def _refused(path: pathlib.Path | str, error: OSError) -> OSError:
    return OSError(
        f"metrics could not be written to {path}: {error.strerror or error}. Checkpoints up to the "
        "last one announced are whole; make room, then start again with the same workdir."
    )


def _clock(secs: float) -> str:
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def _plain(scalars: Scalars) -> dict[str, Any]:
    """Numbers as Python numbers; a non-finite one as its name, since JSON has no NaN."""
    plain = {}
    for name, value in scalars.items():
        number = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
        is_odd = isinstance(number, float) and not np.isfinite(number)
        plain[name] = str(number) if is_odd else number
    return plain


def _step_of(line: str, path: pathlib.Path, number: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}:{number} is no line of metrics ({line.strip()[:60]!r}); remove the line."
        ) from error


def _whole_lines(path: pathlib.Path) -> list[str]:
    """The lines of a file without a last one that a kill cut short."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [line + "\n" for line in lines[:-1]]
