"""A run's directory: who owns it, what configuration it belongs to, what was reported at start.

config.json     the resolved config, written once all checks have passed
run.json        the start-up report: mesh, attention, allocator, MFU formula, versions
tokenizer.json  what the token ids mean (or tokenizer.model); with tokenizer_config.json and, where
                conversations were trained, chat_template.jinja
card.json       what the text is
metrics.jsonl   one JSON object a line
tensorboard/    the same numbers as event files
checkpoints/    Orbax checkpoints, one directory a step
"""

import contextlib
import fcntl
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxtrain.chat.source import TEMPLATE_FILE
from jaxtrain.files import read_json, write_json, write_whole
from jaxtrain.tokenizer.special_tokens import FILES as TOKENIZER_FILES
from jaxtrain.train.checkpoint_read import Condition, find_entries

CONFIG = "config.json"
REPORT = "run.json"
METRICS = "metrics.jsonl"
CARD = "card.json"
TENSORBOARD = "tensorboard"
CHECKPOINTS = "checkpoints"

SplitChanges = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[list[str], list[str]]]


def config_hash(plain: Mapping[str, Any]) -> str:
    """A short hash of a plain config."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def check(
    workdir: pathlib.Path, plain: Mapping[str, Any], split_changes: SplitChanges
) -> list[str]:
    """Compares a config with the one that the workdir belongs to; returns what there is to say.

    A workdir belongs to a run from its first line of metrics or checkpoint on: a start that fails
    before (out of memory while compiling) leaves it to any other.

    Raises:
      ValueError: where the workdir belongs to another run, with every difference that makes it so.
    """
    path = workdir / CONFIG
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"--workdir={workdir} is a file; give a directory.")
    if not path.exists():
        if (workdir / CHECKPOINTS).exists():
            raise ValueError(
                f"--workdir={workdir} holds checkpoints but no {CONFIG}; it is not a workdir of "
                "this program, or was damaged. Give another directory."
            )
        return []
    breaking, harmless = split_changes(read_json(path), plain)
    if breaking and _has_trained(workdir):
        raise ValueError(
            f"--workdir={workdir} belongs to another run, which differs in "
            f"{'; '.join(breaking)}. Use another workdir, or that run's config."
        )
    taken = [
        f"taken over from a start that never trained, which differed in {line}" for line in breaking
    ]
    return taken + [f"changed since this workdir was last used: {line}" for line in harmless]


@contextlib.contextmanager
def hold(workdir: pathlib.Path) -> Iterator[None]:
    """Creates the directory and holds it against a second run of the same workdir.

    Raises:
      ValueError: where another process holds it.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--workdir={workdir} is in use by another running process.") from None
        yield


def claim(
    workdir: pathlib.Path,
    plain: Mapping[str, Any],
    report: Mapping[str, Any],
    companions: Mapping[str, bytes] | None = None,
) -> None:
    """Writes the config, the start-up report, and files that belong to the data (tokenizer)."""
    write_json(workdir / CONFIG, plain)
    write_json(workdir / REPORT, report)
    for name in (*TOKENIZER_FILES, TEMPLATE_FILE, CARD):
        (workdir / name).unlink(missing_ok=True)  # of a start that never trained
    for name, content in (companions or {}).items():
        with write_whole(workdir / name) as file:
            file.write(content)


def _has_trained(workdir: pathlib.Path) -> bool:
    metrics = workdir / METRICS
    if metrics.exists() and metrics.stat().st_size:
        return True
    entries = find_entries(workdir / CHECKPOINTS)
    return any(entry.condition is not Condition.LEFTOVER for entry in entries)
