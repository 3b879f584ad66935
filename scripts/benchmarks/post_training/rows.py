"""Rows of public data, split into train and held-out; beginnings of stories for a teacher."""

import gzip
import hashlib
import itertools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrain import files

_HUMAN, _ASSISTANT = "\n\nHuman:", "\n\nAssistant:"  # of hh-rlhf's transcripts
_NAMES = ("Lily", "Tom", "Mia", "Ben", "Sara", "Max", "Anna", "Tim", "Lucy", "Sam")
_OPENINGS = (
    "Once upon a time, there was a child named {}.",
    "One day, {} went to the park.",
    "{} loved to play with a big red ball.",
    "{} had a little dog.",
    "It was a sunny day and {} was happy.",
    "{} was in the garden with Mom.",
)


class DataSet(NamedTuple):
    """One public file."""

    name: str
    path: str  # below the folder of data, gzipped JSON or JSON Lines
    heldout_one_in: int
    command: str  # of `jaxtrain.tokenize`: "chat" or "answers"
    judged: bool = False  # pairs become single answers, each with a label

    def exists(self, data: pathlib.Path) -> bool:
        """Whether the file is there."""
        return (data / self.path).is_file()

    def split(self, data: pathlib.Path, out: pathlib.Path) -> dict[str, pathlib.Path]:
        """Writes OUT/NAME-train.jsonl and OUT/NAME-heldout.jsonl; returns them by their split."""
        rows = _read(data / self.path)
        paths = {each: out / f"{self.name}-{each}.jsonl" for each in ("train", "heldout")}
        for name, path in paths.items():
            wanted = name == "heldout"
            kept = [row for row in rows if is_heldout(row, self.heldout_one_in) == wanted]
            write(path, judged(kept) if self.judged else kept)
        return paths


def is_heldout(row: Mapping[str, Any], one_in: int) -> bool:
    """Whether a row is held out, by a hash of what its user says first.

    So a conversation, and all answers to one prompt, stand on one side, in every file.
    """
    digest = hashlib.sha256(_first_said(row).encode()).digest()
    return int.from_bytes(digest[:8], "big") % one_in == 0


def judged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each pair of transcripts one answer: in turn the chosen, desirable, and the rejected.

    One only, so that no prompt comes twice in a row (KTO pairs a prompt with the next answer).
    """
    return [
        {
            "messages": _messages(row["rejected" if number % 2 else "chosen"]),
            "label": not number % 2,
        }
        for number, row in enumerate(rows)
    ]


def _messages(transcript: str) -> list[dict[str, str]]:
    _, *parts = re.split(r"\n\n(Human|Assistant):", transcript)
    return [
        {"role": "user" if who == "Human" else "assistant", "content": said.strip()}
        for who, said in zip(parts[::2], parts[1::2], strict=True)
    ]


def openings() -> list[dict[str, str]]:
    """Beginnings of stories, as rows for `jaxtrain.distill_text`."""
    return [
        {"prompt": opening.format(name)} for opening, name in itertools.product(_OPENINGS, _NAMES)
    ]


def write(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """JSON Lines, whole or not at all."""
    with files.write_whole(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def _read(path: pathlib.Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode()
    if path.name.endswith(".json.gz"):
        return json.loads(text)
    return [json.loads(line) for line in text.split("\n") if line]


def _first_said(row: Mapping[str, Any]) -> str:
    """What a user says first, in any of the forms of the files used here."""
    if "instruction" in row:
        return row["instruction"].strip()
    messages = row.get("messages", row.get("prompt"))
    if messages is not None:
        return next(each["content"] for each in messages if each["role"] == "user").strip()
    said, _, _ = row["chosen"].removeprefix(_HUMAN).partition(_ASSISTANT)
    return said.strip()
