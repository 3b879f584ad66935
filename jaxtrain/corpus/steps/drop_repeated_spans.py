"""Cuts lines, paragraphs or runs of three sentences that stand elsewhere in the corpus too.

Of all places where a span stands one keeps it: in the first document in order (longest first, then
by hashes of content), there at the first position. Elsewhere it is cut; what surrounds it stays as
it is. A document with no line, paragraph or sentence of `min_bytes` left is dropped. C4 (Raffel et
al. 2020) cuts spans of three sentences. (A cut brings sentences together that were apart: a second
pass may find three in a row that are new.)
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates import shuffle
from jaxtrain.corpus.duplicates.identity import ORDER, chunk_of, order_keys, places, row_of
from jaxtrain.corpus.duplicates.spans import (
    LINES,
    PARAGRAPHS,
    SENTENCES,
    find_spans,
    has_piece,
    without_repeats,
)
from jaxtrain.corpus.step import Executor, Outcome, Workspace, load_observed
from jaxtrain.options import option

_CUT_RULES = {
    LINES: "repeated line",
    PARAGRAPHS: "repeated paragraph",
    SENTENCES: "repeated sentences",
}
_NOTHING_LEFT = "nothing left but repeats"
_HASH = ("high", "low")
_WHERE = ("position", "place")
_RANK = (*ORDER, *_WHERE)  # which place keeps a span
_RECORD = np.dtype([(name, "i8" if name in _WHERE else "u8") for name in (*_HASH, *_RANK)])
_VERDICT = np.dtype([("place", "i8"), ("position", "i8"), ("stays", "?")])


@dataclasses.dataclass(frozen=True)
class Config:
    """What a span is."""

    unit: str = option(
        SENTENCES, "lines, paragraphs, or three sentences in a row", choices=tuple(_CUT_RULES)
    )
    # Ours: so that a closing brace or "Yes." is not the only one of a corpus.
    min_bytes: int = option(30, "spans shorter than this (bytes in UTF-8) stay wherever they are")

    def __post_init__(self) -> None:
        if self.unit not in _CUT_RULES:
            raise ValueError(f"unit={self.unit!r} must be one of {', '.join(_CUT_RULES)}")
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes={self.min_bytes} must be at least 1; 1 compares all")


class DropRepeatedSpans:
    """Keeps each span in one place of the corpus."""

    needs: Sequence[str] = ()
    writes: Mapping[str, type] = {}

    def __init__(self, config: Config) -> None:
        self._config = config
        self.rules: Sequence[str] = (_CUT_RULES[config.unit], _NOTHING_LEFT)

    def observe(self, chunk: Sequence[Document]) -> Mapping[str, np.ndarray]:
        """The hashes of all spans, where they stand, and the order of documents."""
        found = [find_spans(each.text, self._config.unit, self._config.min_bytes) for each in chunk]
        empty = np.zeros((0, 2), np.uint64)
        return {
            "order": order_keys(chunk),
            "spans": np.concatenate([empty, *(spans.hashes for spans in found)]),
            "positions": np.concatenate([empty[:, 0], *(s.positions for s in found)]).astype("i8"),
            "rows": np.repeat(np.arange(len(chunk)), [len(s.positions) for s in found]),
        }

    def decide(
        self, observed: Sequence[pathlib.Path], executor: Executor, scratch: pathlib.Path
    ) -> Mapping[str, Any]:
        """Brings equal spans together by a shuffle, and verdicts to their chunks by another."""
        spill, verdicts = scratch / "spill", scratch / "verdicts"
        for folder in (spill, verdicts):
            shutil.rmtree(folder, ignore_errors=True)
        spans = sum(len(load_observed(path)["rows"]) for path in observed)
        number = shuffle.num_partitions(spans * _RECORD.itemsize)
        tasks = [
            shuffle.ScatterTask(path, i, number, spill / f"{i:05d}")
            for i, path in enumerate(observed)
        ]
        folders = list(executor.map(_scatter, tasks))
        finds = [
            _Find(folders, part, len(observed), verdicts / f"{part:05d}") for part in range(number)
        ]
        sizes: dict[int, int] = {}
        for part in executor.map(_find, finds):
            for size, count in part.items():
                sizes[size] = sizes.get(size, 0) + count
        shutil.rmtree(spill, ignore_errors=True)
        return {
            "spans": spans,
            "repeats": sum((size - 1) * count for size, count in sizes.items()),
            "spans_by_number_of_places": {str(size): sizes[size] for size in sorted(sizes)},
        }

    def apply(
        self, index: int, chunk: Sequence[Document], scratch: pathlib.Path
    ) -> Sequence[Outcome]:
        """Cuts the repeats out of the documents of the chunk."""
        verdicts = shuffle.gather(sorted((scratch / "verdicts").iterdir()), index, _VERDICT)
        verdicts = verdicts[np.argsort(verdicts["place"], kind="stable")]
        bounds = np.searchsorted(row_of(verdicts["place"]), np.arange(len(chunk) + 1))
        return [
            self._cut(document, verdicts[bounds[row] : bounds[row + 1]])
            for row, document in enumerate(chunk)
        ]

    def _cut(self, document: Document, verdicts: np.ndarray) -> Outcome:
        stays, positions = verdicts["stays"], verdicts["position"]
        text, gone = without_repeats(
            document.text, self._config.unit, positions[~stays], positions[stays]
        )
        if not gone:
            return Outcome(document)
        if not has_piece(text, self._config.unit, self._config.min_bytes):
            because = f"{gone} {self._config.unit} stand elsewhere too; the rest is in scraps"
            return Outcome(document, _NOTHING_LEFT, because)
        return Outcome(document._replace(text=text), edits={self.rules[0]: gone})


def _scatter(task: shuffle.ScatterTask) -> pathlib.Path:
    arrays = load_observed(task.observed)
    rows, spans = arrays["rows"], arrays["spans"]
    records = np.empty(len(rows), _RECORD)
    for column, name in enumerate(_HASH):
        records[name] = spans[:, column]
    order = arrays["order"]
    for column, name in enumerate(ORDER):
        records[name] = order[rows, column]
    records["position"] = arrays["positions"]
    records["place"] = places(task.chunk, rows)
    partitions = shuffle.partition_of(records["high"], task.partitions)
    return shuffle.scatter(task.folder, records, partitions, task.partitions)


class _Find(NamedTuple):
    folders: Sequence[pathlib.Path]
    partition: int
    chunks: int
    verdicts: pathlib.Path


def _find(task: _Find) -> dict[int, int]:
    """Writes verdicts on the repeated spans of a partition; returns size of group -> number."""
    records = shuffle.gather(task.folders, task.partition, _RECORD)
    records = shuffle.repeated(records, "high", ("low", *_RANK))
    ends = shuffle.run_ends([records[name] for name in _HASH])
    sizes = np.diff(ends, prepend=0)
    stays = np.zeros(len(records), bool)
    stays[ends - sizes] = True
    several = np.repeat(sizes > 1, sizes)
    verdicts = np.empty(np.count_nonzero(several), _VERDICT)
    verdicts["place"], verdicts["position"] = (
        records["place"][several],
        records["position"][several],
    )
    verdicts["stays"] = stays[several]
    shuffle.scatter(task.verdicts, verdicts, chunk_of(verdicts["place"]), task.chunks)
    found, counts = np.unique(sizes[sizes > 1], return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def make(config: Config, workspace: Workspace) -> DropRepeatedSpans:
    """The step."""
    return DropRepeatedSpans(config)
