"""Removes what stands in the benchmarks that an evaluation will use, and reports how much does.

A document is hit where it holds n words in a row of an item, whatever its case, punctuation and
line breaks (`contamination/index.py` says how short items are found). It is dropped, or the place
is cut out with what stands around it. The report gives each item's coverage by the corpus, so that
an evaluation can print its score on clean items beside that on all.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain import files
from jaxtrain.corpus.contamination.benchmark import (
    BenchmarkSpec,
    check_benchmark,
    read_benchmarks,
)
from jaxtrain.corpus.contamination.excise import BETWEEN_PIECES, Margins, pieces
from jaxtrain.corpus.contamination.index import MIN_WORDS, Hits, Index, Scan
from jaxtrain.corpus.contamination.plain_words import Span, word_spans
from jaxtrain.corpus.contamination.report import KINDS, Observed, report, strongest
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Executor, Fields, Outcome, Workspace, load_observed
from jaxtrain.options import option

DROP, EXCISE = "drop", "excise"
_TOO_MANY_PIECES, _NOTHING_LEFT = "too many pieces", "nothing left"
_INDEX_FILE = "benchmarks.npz"
_FIELDS = Fields(needs=(), writes={})


@dataclasses.dataclass(frozen=True)
class Config:
    """What is looked for and what becomes of it; the numbers are GPT-3's (Brown et al. 2020)."""

    benchmarks: tuple[str, ...] = option(
        (), "name=file:question_field,other_field,… of each; any format that inputs can have"
    )
    n: int = option(13, "words in a row that are a hit (GPT-3 takes 8 to 13)")
    action: str = option(
        DROP, "the document is dropped, or the hit cut out of it", choices=(DROP, EXCISE)
    )
    window_chars: int = option(200, "cut out on either side of a hit (characters)")
    min_piece_chars: int = option(200, "a shorter piece between cuts goes too (characters)")
    max_pieces: int = option(10, "a document that is left in more pieces is dropped")

    def __post_init__(self) -> None:
        for text in self.benchmarks:
            try:
                BenchmarkSpec.parse(text)
            except ValueError as error:
                raise ValueError(f"benchmarks: {error}") from error
        names = [BenchmarkSpec.parse(text).name for text in self.benchmarks]
        if len(set(names)) < len(names):
            raise ValueError(f"benchmarks has one name twice in {', '.join(names)}")
        if self.n < MIN_WORDS:
            raise ValueError(
                f"n={self.n} must be at least {MIN_WORDS}: fewer words in a row are common speech"
            )
        for name in ("window_chars", "min_piece_chars", "max_pieces"):
            if getattr(self, name) < (0 if name == "window_chars" else 1):
                raise ValueError(f"{name}={getattr(self, name)} is too small")


def check(config: Config) -> Fields:
    """The fields; refuses a config that names no benchmark, or one that is not there."""
    if not config.benchmarks:
        raise ValueError(
            "benchmarks is empty; name the benchmarks of the evaluation, as "
            "gsm8k=gsm8k.jsonl:question,answer, or leave the step out"
        )
    for spec in map(BenchmarkSpec.parse, config.benchmarks):
        check_benchmark(spec)
    return _FIELDS


def fit(config: Config, workspace: Workspace) -> None:
    """Reads the benchmarks and leaves their index.

    Raises:
      ValueError: where one cannot be read.
    """
    index = Index.build(read_benchmarks(config.benchmarks), config.n)
    index.save(workspace.models / _INDEX_FILE)


def make(config: Config, workspace: Workspace) -> "Decontaminate":
    """The step."""
    return Decontaminate(config, Index.load(workspace.models / _INDEX_FILE))


class _Judged(NamedTuple):
    outcome: Outcome
    scan: Scan
    covered_after: np.ndarray  # 8-grams of what goes on


class Decontaminate:
    """Drops or mends documents that hold benchmark items; reports coverage."""

    needs, writes = _FIELDS

    def __init__(self, config: Config, index: Index):
        self._config = config
        self._index = index
        kinds = tuple(KINDS.values())
        cuts = (_TOO_MANY_PIECES, _NOTHING_LEFT) if config.action == EXCISE else ()
        self.rules: Sequence[str] = kinds + cuts

    def observe(self, chunk: Sequence[Document]) -> Mapping[str, np.ndarray]:
        """Which items each document holds, and which 8-grams there are before and after."""
        before, after = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        rows = [np.zeros((3, 0), np.int64)]
        for number, judged in enumerate(self._judge(chunk)):
            before.append(judged.scan.covered)
            after.append(judged.covered_after)
            items, parts = _by_item(judged.scan.hits)
            rows.append(np.stack([np.full(len(items), number), items, parts]))
        documents, items, parts = np.concatenate(rows, axis=1)
        kept, left = (np.unique(np.concatenate(each)) for each in (before, after))
        return Observed(kept, left, documents, items, parts)._asdict()

    def decide(
        self, observed: Sequence[pathlib.Path], executor: Executor, scratch: pathlib.Path
    ) -> Mapping[str, Any]:
        """The report; leaves for each chunk which of its documents hold anything."""
        found = []
        for index, path in enumerate(observed):
            found.append(Observed(**load_observed(path)))
            with files.write_whole(scratch / f"{index}.npy") as file:
                np.save(file, np.unique(found[-1].documents))
        return report(self._index, found)

    def apply(
        self, index: int, chunk: Sequence[Document], scratch: pathlib.Path
    ) -> Sequence[Outcome]:
        """Drops or mends; most documents need no second look."""
        outcomes = [Outcome(document) for document in chunk]
        numbers = np.load(scratch / f"{index}.npy").tolist()
        judged = self._judge([chunk[number] for number in numbers])
        for number, each in zip(numbers, judged, strict=True):
            outcomes[number] = each.outcome
        return outcomes

    def _judge(self, chunk: Sequence[Document]) -> list[_Judged]:
        scans = self._index.scan([document.text for document in chunk])
        return [self._one(document, scan) for document, scan in zip(chunk, scans, strict=True)]

    def _one(self, document: Document, scan: Scan) -> _Judged:
        nothing = np.zeros(0, np.int64)
        if not len(scan.hits.items):
            return _Judged(Outcome(document), scan, scan.covered)
        kind, because = self._why(scan.hits)
        if self._config.action == DROP:
            return _Judged(Outcome(document, kind, because), scan, nothing)
        left, num_cuts = self._excised(document.text, scan.hits)
        if len(left) > self._config.max_pieces:
            because += f": {len(left)} pieces > {self._config.max_pieces}"
            return _Judged(Outcome(document, _TOO_MANY_PIECES, because), scan, nothing)
        if not left:
            because += f": no piece of {self._config.min_piece_chars} characters"
            return _Judged(Outcome(document, _NOTHING_LEFT, because), scan, nothing)
        text = BETWEEN_PIECES.join(left)
        outcome = Outcome(document._replace(text=text), edits={kind: num_cuts})
        return _Judged(outcome, scan, next(self._index.scan([text])).covered)

    def _why(self, hits: Hits) -> tuple[str, str]:
        items, parts = _by_item(hits)
        kind = strongest(parts.tolist())
        name, row = self._index.place(int(items[parts == kind][0]))
        others = f" and {len(items) - 1} more" if len(items) > 1 else ""
        return KINDS[kind], f"{name} row {row}{others}"

    def _excised(self, text: str, hits: Hits) -> tuple[list[str], int]:
        """The pieces that are left, and how many places were cut out."""
        margins = Margins(self._config.window_chars, self._config.min_piece_chars)
        left, num_cuts = [text], 0
        while len(hits.items):  # again, should the pieces make an item where they meet
            joined = BETWEEN_PIECES.join(left)
            spans = word_spans(joined)
            cuts = _places(hits, spans)
            num_cuts += len(cuts)
            left = pieces(joined, cuts, margins)
            hits = next(self._index.scan([BETWEEN_PIECES.join(left)])).hits
        return left, num_cuts


def _by_item(hits: Hits) -> tuple[np.ndarray, np.ndarray]:
    """The items that a document holds and what of each, as bits."""
    items, which = np.unique(hits.items, return_inverse=True)
    parts = np.zeros(len(items), np.int64)
    np.bitwise_or.at(parts, which, hits.parts)
    return items, parts


def _places(hits: Hits, spans: Sequence[Span]) -> list[Span]:
    """Where hits stand in a text, those that touch taken together."""
    found: list[Span] = []
    for word, length in sorted(set(zip(hits.words.tolist(), hits.lengths.tolist(), strict=True))):
        start, stop = spans[word].start, spans[word + length - 1].stop
        if found and start <= found[-1].stop:
            found[-1] = Span(found[-1].start, max(found[-1].stop, stop))
        else:
            found.append(Span(start, stop))
    return found
