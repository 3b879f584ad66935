"""A file of prompts to a file of answers, which a second start goes on with where it stopped.

Each line of the input is an object with a `prompt`, or `messages` and perhaps `tools` and
`chat_template_kwargs`. Each line of
the output is that object with `answers` and the `sampling` that they were drawn with, in the order
of the input. While it runs, answers are kept in `OUTPUT.part`, one line a prompt as they are
finished, after a first line that says what they were made from: other prompts or settings are not
taken up.
"""

import fcntl
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from jaxtrain import files

Row = Mapping[str, Any]


def read_rows(path: pathlib.Path) -> list[Row]:
    r"""The rows of a prompt file; lines end at \n only, blank ones are passed by.

    Raises:
      ValueError: names the line and what is wrong with it.
    """
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            # A lone surrogate is no text, and NaN no JSON: what reads the answers would refuse it.
            json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(row, dict) or ("prompt" in row) == ("messages" in row):
            raise ValueError(f"{path}:{number} must be an object with either prompt or messages")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no prompts")
    return rows


class AnswerFile:
    """The output of one run over a prompt file.

    Args:
      recipe: all that decides the answers beside the rows: model, sampling, limits.
    """

    def __init__(self, path: pathlib.Path, rows: Sequence[Row], recipe: Mapping[str, Any]) -> None:
        """Raises:
        ValueError: where the output, or a part of it, was made from something else.
        """
        self._path, self._rows = path, rows
        self._part = path.with_name(path.name + ".part")
        text = json.dumps([recipe, rows], sort_keys=True, ensure_ascii=False)
        self._header = {"made_from": hashlib.sha256(text.encode()).hexdigest(), "recipe": recipe}
        if path.exists():
            raise ValueError(f"--output={path} exists; give another name, or delete it")
        self._done = self._read_part()

    @property
    def answers(self) -> Mapping[int, Any]:
        """By number of the row, of those that have some."""
        return self._done

    @property
    def num_done(self) -> int:
        """Prompts that were answered before."""
        return len(self._done)

    @property
    def waiting(self) -> list[int]:
        """Numbers of the rows that have no answers yet."""
        return [number for number in range(len(self._rows)) if number not in self._done]

    def fill(self, answers: Iterable[tuple[int, Any]], show: Callable[[int], None]) -> None:
        """Takes (row number, answers) until all are there, then writes the output whole."""
        self.collect(answers, show)
        missing = self.waiting
        assert not missing, missing
        sampling = self._header["recipe"]["sampling"]
        self.write(
            dict(row) | {"answers": self._done[number], "sampling": sampling}
            for number, row in enumerate(self._rows)
        )

    def collect(self, answers: Iterable[tuple[int, Any]], show: Callable[[int], None]) -> None:
        """Keeps (row number, answers) as they come; later ones of a row replace earlier ones."""
        self._part.parent.mkdir(parents=True, exist_ok=True)
        with open(self._part, "r+b" if self._part.exists() else "w+b") as part:
            self._lock(part)
            part.truncate(self._end)
            part.seek(self._end)
            if self._end == 0:
                _append(part, self._header)
            for number, row_answers in answers:
                self._done[number] = row_answers
                _append(part, {"row": number, "answers": row_answers})
                show(len(self._done))

    def write(self, rows: Iterable[Row]) -> None:
        """Writes the output whole; what was collected is not needed any more."""
        with files.write_whole(self._path) as file:
            for row in rows:
                file.write(_line(row))
        os.unlink(self._part)

    def _lock(self, part: IO[bytes]) -> None:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, killed or not
            is_ours = self._read_part() == self._done
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise ValueError(
                f"{self._part} is being written by another run; wait for it, or give another "
                "--output"
            )

    def _read_part(self) -> dict[int, Any]:
        self._end = 0
        if not self._part.exists():
            return {}
        lines = list(_whole_lines(self._part))
        if not lines:
            return {}
        if lines[0][1] != self._header:
            differing = _differing(lines[0][1].get("recipe"), self._header["recipe"])
            raise ValueError(
                f"{self._part} was made from other prompts or settings{differing}; give another "
                "--output, or delete it"
            )
        self._end = lines[-1][0]
        return {line["row"]: line["answers"] for _, line in lines[1:]}


def _differing(before: Any, now: Mapping[str, Any]) -> str:
    """Names of settings that differ, "" where it is the prompts."""
    before = _leaves(before) if isinstance(before, Mapping) else {}
    after = _leaves(now)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return f" ({', '.join(sorted(names))})" if names else ""


def _leaves(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in recipe.items():
        is_node = isinstance(value, Mapping)
        found |= _leaves(value, f"{prefix}{name}.") if is_node else {prefix + name: value}
    return found


def _whole_lines(path: pathlib.Path) -> Iterator[tuple[int, Any]]:
    """(byte after it, value) of each line that was written whole."""
    end = 0
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            value = json.loads(line)
        except ValueError:
            return
        end += len(line) + 1
        yield end, value


def _append(file: IO[bytes], value: Any) -> None:
    file.write(_line(value))
    file.flush()


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"
