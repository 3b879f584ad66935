"""Benchmarks as their files hold them: items of a question and what belongs to it."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import Malformed, ReadingConfig, Unit, check, plan, read, storage
from jaxtrain.corpus.inputs.reading import COUNT

_FORM = "name=file:question_field,other_field,…"


class BenchmarkSpec(NamedTuple):
    """`gsm8k=gsm8k.jsonl:question,answer`: a name, a file or glob, the question and the rest."""

    name: str
    pattern: str
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "BenchmarkSpec":
        """Reads the form that users write; raises ValueError where it is another."""
        match = re.fullmatch(r"([\w.-]+)=(.+):([^:/,]+(?:,[^:/,]+)*)", text)
        if not match:
            raise ValueError(f"{text!r} must have the form {_FORM}")
        return cls(match[1], match[2], tuple(match[3].split(",")))


class BenchmarkItem(NamedTuple):
    """One item; the first text is what it asks, the others belong to it."""

    texts: tuple[str, ...]

    @property
    def question(self) -> str:
        """What is asked."""
        return self.texts[0]


class Benchmark(NamedTuple):
    """All items of a benchmark, by row, and the hashes of the files they come from."""

    name: str
    items: list[BenchmarkItem]
    sha256: tuple[str, ...]


def read_benchmark(spec: BenchmarkSpec) -> Benchmark:
    """Reads every item; any format that a corpus can have.

    Raises:
      ValueError: names the file and the row that lacks a field.
    """
    units = plan([spec.pattern], _reading(spec))
    items = list(_items(spec, units))
    if not items:
        raise ValueError(f"benchmarks: {spec.pattern} holds no item of {spec.name}")
    files = dict.fromkeys(part.file for unit in units for part in unit.parts)
    return Benchmark(spec.name, items, tuple(map(storage.sha256, files)))


def check_benchmark(spec: BenchmarkSpec) -> None:
    """Reads the first item alone: raises ValueError where file or fields are wrong."""
    check("benchmarks", [spec.pattern], _reading(spec))
    next(_items(spec, plan([spec.pattern], _reading(spec))), None)


def _reading(spec: BenchmarkSpec) -> ReadingConfig:
    return ReadingConfig(text_field=spec.fields[0], fields=spec.fields[1:], malformed=COUNT)


def _items(spec: BenchmarkSpec, units: Sequence[Unit]) -> Iterator[BenchmarkItem]:
    for item in (item for unit in units for item in read(unit, _reading(spec))):
        if isinstance(item, Malformed):
            raise ValueError(
                f"benchmarks: {spec.name}: {item.file}:{item.line or item.offset}: "
                f"{item.detail or item.reason}; mend it, or name other fields"
            )
        texts = ("",)
        if isinstance(item, Document):
            texts = (item.text, *(_flat(item.metadata[field]) for field in spec.fields[1:]))
        yield BenchmarkItem(texts)


def read_benchmarks(texts: Sequence[str]) -> list[Benchmark]:
    """The benchmarks of a config."""
    return [read_benchmark(BenchmarkSpec.parse(text)) for text in texts]


def _flat(value: Any) -> str:
    """The text of a field: choices one after another, numbers as they are written."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return "\n".join(map(_flat, value))
    return "" if value is None else str(value)
