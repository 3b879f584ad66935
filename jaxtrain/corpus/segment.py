"""One segment of the line over one unit of input or one chunk: what a worker does.

A chunk is committed by its report, which is written after everything else of it. So a worker can be
killed at any moment: whoever goes on begins with the first chunk that has no report, inside a unit
too, and comes to the same bytes.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain import files
from jaxtrain.corpus.chunks import read_chunk, write_chunk
from jaxtrain.corpus.config import CorpusConfig
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.executors import in_words
from jaxtrain.corpus.fates import Fates
from jaxtrain.corpus.inputs import Malformed, Unit, read
from jaxtrain.corpus.layout import ChunkName, Layout
from jaxtrain.corpus.ledger import Declared, Report
from jaxtrain.corpus.line import Line, NamedStep
from jaxtrain.corpus.rejected import Rejected
from jaxtrain.corpus.split import HELDOUT, SPLIT_RULES, TRAIN, split
from jaxtrain.corpus.step import GlobalStep, Outcome, Step

SPLIT = "split"  # the label of the last step of every line
_BATCH_BYTES = 2_000_000  # of text that a step sees at a time: bounds what it allocates
_DOCUMENT_BYTES = 256  # that a document takes beside its text, about: bounds chunks of tiny ones


@dataclasses.dataclass(frozen=True)
class Job:
    """What every worker of a segment has to know."""

    config: CorpusConfig
    line: Line
    workdir: pathlib.Path
    segment: int

    @property
    def layout(self) -> Layout:
        """Where things lie."""
        return Layout(self.workdir)

    def declared(self) -> dict[str, Declared]:
        """What the steps say of themselves, for a report."""
        steps = {
            label: Declared(rules, tuple(self.line.writes[label]), label in self.line.private)
            for label, rules in self.line.rules.items()
        }
        return steps | {SPLIT: Declared(SPLIT_RULES)}

    def new_report(self) -> Report:
        """A report that has counted nothing."""
        return Report(self.declared(), self.config.reading.fields)


class UnitTask(NamedTuple):
    """A unit of input for the first segment."""

    job: Job
    index: int
    unit: Unit

    def __str__(self) -> str:
        return f"unit {self.index} ({self.unit.name})"


class ChunkTask(NamedTuple):
    """A chunk for a later segment."""

    job: Job
    index: int  # among all chunks
    chunk: ChunkName

    def __str__(self) -> str:
        return f"chunk {self.chunk} of pass {self.job.segment + 1}"


class Count(NamedTuple):
    """What a unit held."""

    items: int  # records, whatever became of them
    malformed: int


def process_unit(task: UnitTask) -> Count:
    """Reads a unit from where it was left and takes it through the first segment by chunks."""
    job, place = task.job, task.job.layout.segment(0)
    done = [name for name in place.done() if name.unit == task.index]
    commits = [files.read_json(place.report(name)) for name in done]
    count = Count(*(sum(commit[key] for commit in commits) for key in Count._fields))
    if commits and commits[-1]["ends_unit"]:
        return count
    items = read(task.unit, job.config.reading)
    for _ in range(count.items):
        next(items)
    number = len(commits)
    for chunk in _cut(items, job.config.chunk_bytes):
        malformed = sum(isinstance(item, Malformed) for item in chunk.items)
        here = Count(len(chunk.items), malformed)
        with _naming(f"{task}, chunk {number}"):
            facts = here._asdict() | {"ends_unit": chunk.ends_unit}
            _Passage(job, ChunkName(task.index, number)).first(chunk.items, facts)
        count = Count(*map(sum, zip(count, here, strict=True)))
        number += 1
    return count


def process_chunk(task: ChunkTask) -> None:
    """Takes a chunk through a later segment."""
    job = task.job
    before, here = (job.layout.segment(job.segment + step) for step in (-1, 0))
    if not here.report(task.chunk).exists():
        with _naming(str(task)):
            _Passage(job, task.chunk).later(task.index, before.documents(task.chunk))
    before.documents(task.chunk).unlink(missing_ok=True)


class _Chunk(NamedTuple):
    items: list  # Document | Malformed | Skipped, as read
    ends_unit: bool


def _cut(items: Iterator, chunk_bytes: int) -> Iterator[_Chunk]:
    """Items gathered until they hold `chunk_bytes` of text; the last of a unit says so."""
    held: list = []
    size = 0
    for item in items:
        if size >= chunk_bytes:
            yield _Chunk(held, False)
            held, size = [], 0
        held.append(item)
        size += _DOCUMENT_BYTES + (item.num_bytes if isinstance(item, Document) else 0)
    yield _Chunk(held, True)


class _Passage:
    """A chunk on its way through a segment, and all that is counted of it."""

    def __init__(self, job: Job, name: ChunkName) -> None:
        self._job, self._name = job, name
        self._place = job.layout.segment(job.segment)
        self._steps = _made_steps(job)
        self._report = job.new_report()
        self._rejected = Rejected(job.config.rejected)
        self._fates = Fates()

    def first(self, items: Sequence[Any], facts: dict[str, Any]) -> None:
        """From what a unit gave to the end of the first segment."""
        documents = []
        for item in items:
            if isinstance(item, Document):
                documents.append(item)
            else:
                self._report.pass_by(item.file, item.reason, item.offset, item.num_bytes)
        self._report.take_in(documents)
        self._fates = Fates(documents)
        self._finish(documents, _amount(documents) | facts)

    def later(self, index: int, path: pathlib.Path) -> None:
        """From the documents of the segment before through a later one."""
        documents = list(read_chunk(path))
        before = self._job.layout.segment(self._job.segment - 1)
        self._fates = Fates.load(before.fates(self._name))
        applies = self._steps.applies
        assert applies is not None, "a later segment begins with a global step"
        label, step = applies
        with _naming(f"step {label}"):
            outcomes = step.apply(index, documents, self._place.scratch)
            left = self._judged(label, documents, outcomes)
        self._finish(left, _amount(documents) | {"ends_unit": False})

    def _finish(self, documents: list[Document], facts: dict[str, Any]) -> None:
        for label, step in self._steps.steps:
            with _naming(f"step {label}"):
                outcomes = [each for batch in _batches(documents) for each in step(batch)]
                documents = self._judged(label, documents, outcomes)
        if self._steps.observes:
            self._observe(*self._steps.observes, documents)
            facts["bytes_left"] = _num_bytes(documents)
        else:
            facts["output_bytes"] = self._write(documents)
        self._fates.save(self._place.fates(self._name))
        self._rejected.save(self._place.rejected(self._name))
        files.write_json(self._place.report(self._name), facts | {"report": self._report.to_json()})

    def _judged(
        self, label: str, batch: list[Document], outcomes: Sequence[Outcome]
    ) -> list[Document]:
        """Counts what a step did; returns what is left."""
        self._report.record(label, batch, outcomes)
        self._rejected.record(label, batch, outcomes)
        self._fates.record(label, outcomes)
        kept = [outcome.document for outcome in outcomes if outcome.dropped is None]
        for field, kind in self._job.line.writes.get(label, {}).items():
            for document in kept:
                _check_written(field, kind, document)
        return kept

    def _observe(self, label: str, step: GlobalStep, documents: list[Document]) -> None:
        with _naming(f"step {label}"), files.write_whole(self._place.observed(self._name)) as file:
            arrays: dict[str, Any] = dict(step.observe(documents))
            np.savez(file, **arrays)
        fields = self._job.line.fields_before(self._job.segment + 1)
        write_chunk(self._place.documents(self._name), documents, fields)

    def _write(self, documents: list[Document]) -> dict[str, int]:
        """Writes the outputs; returns the bytes of text in each."""
        outcomes, outputs = split(documents, self._job.config.heldout_frac)
        kept = self._judged(SPLIT, documents, outcomes)
        self._fates.write(outputs, kept)
        fields = self._job.line.fields_before(len(self._job.line.segments))
        written = {}
        for name in (TRAIN, HELDOUT):
            chosen = [each for each, out in zip(kept, outputs, strict=True) if out == name]
            self._report.write(name, chosen)
            if chosen:
                write_chunk(self._place.output(self._name, name), chosen, fields)
                written[name] = _num_bytes(chosen)
        return written


class _MadeSteps(NamedTuple):
    applies: tuple[str, GlobalStep] | None
    steps: list[tuple[str, Step]]
    observes: tuple[str, GlobalStep] | None


_made: tuple[Job, _MadeSteps] | None = None  # of this process: models are loaded once


def _made_steps(job: Job) -> _MadeSteps:
    global _made
    if _made is None or _made[0] != job:
        segment = job.line.segments[job.segment]

        def make(named: NamedStep | None) -> Any:
            return named and (named.label, named.make(job.config, job.layout.models))

        steps = [make(named) for named in segment.steps]
        _made = job, _MadeSteps(make(segment.applies), steps, make(segment.observes))
    return _made[1]


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text) + _DOCUMENT_BYTES
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _amount(documents: Sequence[Document]) -> dict[str, int]:
    return {"documents": len(documents), "bytes": _num_bytes(documents)}


def _num_bytes(documents: Iterable[Document]) -> int:
    return sum(document.num_bytes for document in documents)


def _check_written(field: str, kind: type, document: Document) -> None:
    value = document.metadata.get(field, document)
    if value is document:
        raise ValueError(f"set no field {field!r} on document {document.id!r}, but declares it")
    if value is not None and type(value) is not kind:
        raise ValueError(
            f"set {field!r} of document {document.id!r} to {value!r}, but declares {kind.__name__}"
        )


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Puts the place before the message of an error that comes out of the block."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{where}: {in_words(error)}") from error
