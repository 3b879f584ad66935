"""Scores documents by a classifier trained on two corpora, and keeps the best.

`positives` is text such as one wants more of, `negatives` text as it comes. `fit` trains the linear
classifier of `corpus/linear_classifier.py`; a model file of fastText may stand in for it. The score
is the field `quality`, from 0 to 1. Kept is what reaches `min_quality`, or the best `keep_frac` of
all documents: then the whole corpus is seen before any document is judged.
"""

import dataclasses
import hashlib
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxtrain import files
from jaxtrain.corpus import linear_classifier, selection
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import ReadingConfig, read_documents
from jaxtrain.corpus.inputs import check as check_inputs
from jaxtrain.corpus.linear_classifier import LinearClassifier
from jaxtrain.corpus.step import (
    Executor,
    Fields,
    GlobalStep,
    Outcome,
    Step,
    Workspace,
    load_observed,
)
from jaxtrain.options import option

_MODEL = "classifier.npz"
_LOW = "low quality"
_FIELDS = Fields(needs=(), writes={"quality": float})
_KEYS = ("rank", "text", "id")  # columns of `selection`, in order of weight

Scorer = Callable[[Sequence[str]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Config:
    """What good text looks like and how much is kept."""

    positives: tuple[str, ...] = option((), "inputs of good text, each [name=]path, glob or URL")
    negatives: tuple[str, ...] = option((), "inputs of ordinary text")
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    max_documents: int = option(100_000, "trained on, of each; more are sampled by their hashes")
    # DCLM (Li et al. 2024, arXiv:2406.11794) keeps the best 10% by its fastText classifier.
    keep_frac: float | None = option(0.1, "share of documents kept, the best; None: by min_quality")
    min_quality: float | None = option(None, "drop below this quality; set keep_frac=None with it")
    fasttext_model: str | None = option(
        None, "a fastText model file (.bin) used instead of positives and negatives"
    )
    fasttext_label: str = option("__label__hq", "its label of good text")  # as in DCLM's model

    def __post_init__(self) -> None:
        if self.keep_frac is not None and not 0 < self.keep_frac < 1:
            raise ValueError(f"keep_frac={self.keep_frac} must lie between 0 and 1; 0.1 is usual")
        if self.min_quality is not None and not 0 < self.min_quality < 1:
            raise ValueError(f"min_quality={self.min_quality} must lie between 0 and 1")
        if self.min_quality is not None and self.keep_frac is not None:
            raise ValueError("min_quality and keep_frac are both set; set one of them to None")
        if self.max_documents < 2:
            raise ValueError(f"max_documents={self.max_documents} must be at least 2")
        if self.fasttext_model and (self.positives or self.negatives):
            raise ValueError("fasttext_model is set, so positives and negatives must be empty")


def check(config: Config) -> Fields:
    """The fields; refuses a config that says nothing to learn from, or a model that is none."""
    if config.fasttext_model:
        FastText(config.fasttext_model, config.fasttext_label)
        return _FIELDS
    for name in ("positives", "negatives"):
        if not getattr(config, name):
            raise ValueError(f"{name} is empty; name text to train on, or set fasttext_model")
        check_inputs(name, getattr(config, name), config.reading)
    return _FIELDS


def fit(config: Config, workspace: Workspace) -> None:
    """Trains the classifier, unless a fastText model is named."""
    if config.fasttext_model:
        return
    samples = []
    for inputs in (config.positives, config.negatives):
        texts = (document.text for document in read_documents(inputs, config.reading))
        samples.append(linear_classifier.sample(texts, config.max_documents))
    linear_classifier.train(*samples).save(workspace.models / _MODEL)


def make(config: Config, workspace: Workspace) -> Step | GlobalStep:
    """A step where the threshold is a value or there is none; else one that sees the corpus."""
    if config.fasttext_model:
        scorer: Scorer = FastText(config.fasttext_model, config.fasttext_label)
        facts: Mapping[str, Any] = {}
    else:
        classifier = LinearClassifier.load(workspace.models / _MODEL)
        scorer, facts = classifier.score, classifier.facts
    if config.keep_frac is None:
        return KeepAbove(scorer, config.min_quality)
    return KeepBest(scorer, config.keep_frac, facts)


class KeepAbove:
    """Sets `quality`; drops below a value."""

    needs, writes = _FIELDS

    def __init__(self, scorer: Scorer, min_quality: float | None):
        self._score, self._least = scorer, min_quality
        self.rules: Sequence[str] = () if min_quality is None else (_LOW,)

    def __call__(self, batch: Sequence[Document]) -> Sequence[Outcome]:
        scores = self._score([document.text for document in batch])
        outcomes = []
        for document, score in zip(batch, map(float, scores), strict=True):
            if self._least is not None and score < self._least:
                because = f"quality {score:.6g} < {self._least}"
                outcomes.append(Outcome(_with_quality(document, score), _LOW, because))
            else:
                outcomes.append(Outcome(_with_quality(document, score)))
        return outcomes


class KeepBest:
    """Sets `quality`; drops all but a share of the corpus.

    Of documents of the same quality the smaller hash of the text goes first, then that of the id:
    the order of documents and how they are cut into chunks change nothing.
    """

    needs, writes = _FIELDS
    rules: Sequence[str] = (_LOW,)

    def __init__(self, scorer: Scorer, keep_frac: float, facts: Mapping[str, Any]):
        self._score, self._keep_frac, self._facts = scorer, keep_frac, facts

    def observe(self, chunk: Sequence[Document]) -> Mapping[str, np.ndarray]:
        """The quality of each document, and the keys that it is ranked by."""
        quality = self._score([document.text for document in chunk])
        return {
            "quality": quality,
            "rank": selection.ascending(-quality),
            "text": _hashes(document.text for document in chunk),
            "id": _hashes(document.id for document in chunk),
        }

    def decide(
        self, observed: Sequence[pathlib.Path], executor: Executor, scratch: pathlib.Path
    ) -> Mapping[str, Any]:
        """Marks in a file for each chunk which documents are kept."""
        total = sum(len(load_observed(path)["rank"]) for path in observed)
        num_kept = math.ceil(self._keep_frac * total)
        limit = selection.kth_smallest(observed, _KEYS, num_kept) if total else (0, 0, 0)
        least = math.inf
        for index, path in enumerate(observed):
            arrays = load_observed(path)
            kept = selection.at_most([arrays[key] for key in _KEYS], limit)
            quality = arrays["quality"]
            least = min(least, quality[kept].min(initial=math.inf))
            with files.write_whole(scratch / f"{index}.npz") as file:
                np.savez(file, quality=quality, kept=kept)
        cut_off = None if math.isinf(least) else float(least)
        files.write_json(scratch / "cut_off.json", cut_off)
        return {"kept": num_kept, "min_quality": cut_off, **_figures(self._facts)}

    def apply(
        self, index: int, chunk: Sequence[Document], scratch: pathlib.Path
    ) -> Sequence[Outcome]:
        """As `decide` marked it."""
        cut_off = files.read_json(scratch / "cut_off.json")
        verdicts = load_observed(scratch / f"{index}.npz")
        outcomes = []
        for document, score, kept in zip(
            chunk, verdicts["quality"].tolist(), verdicts["kept"].tolist(), strict=True
        ):
            because = f"quality {score:.6g}, not among the best {self._keep_frac:.0%} "
            because += f"(from {cut_off or 0:.6g})"
            outcomes.append(
                Outcome(_with_quality(document, score))
                if kept
                else Outcome(_with_quality(document, score), _LOW, because)
            )
        return outcomes


class FastText:
    """The probability that a fastText model gives one of its labels."""

    def __init__(self, path: str, label: str):
        if not pathlib.Path(path).is_file():
            raise ValueError(f"fasttext_model={path}: no such file")
        try:
            import fasttext
        except ImportError as error:
            raise ValueError(
                "fasttext_model is set, but fasttext is not installed; pip install fasttext"
            ) from error
        # The model's own `predict` fails with NumPy 2; what it wraps does not.
        self._model, self._label = fasttext.load_model(path), label
        if label not in self._model.labels:
            known = ", ".join(map(str, sorted(self._model.labels)[:10]))
            raise ValueError(f"fasttext_label={label!r} is none of the model's: {known}")

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([self._probability(text) for text in texts], np.float64)

    def _probability(self, text: str) -> float:
        line = " ".join(text.split("\n")) + "\n"  # it reads one line
        found = self._model.f.predict(line, -1, 0.0, "strict")
        return min(1.0, max(0.0, dict((name, p) for p, name in found).get(self._label, 0.0)))


def _figures(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the classifier was trained from, one value a key; empty for a model of fastText."""
    of_classes = {
        f"{name}_{key}": value
        for name in ("positives", "negatives")
        for key, value in facts.get(name, {}).items()
    }
    return {key: facts[key] for key in ("heldout_auc",) if key in facts} | of_classes


def _with_quality(document: Document, quality: float) -> Document:
    return document._replace(metadata={**document.metadata, "quality": quality})


def _hashes(values: Iterable[str]) -> np.ndarray:
    digests = (hashlib.sha256(value.encode()).digest() for value in values)
    return np.array([int.from_bytes(digest[:8]) for digest in digests], np.uint64)
