"""Scores documents by a small language model and sorts them into head, middle and tail.

After CCNet (Wenzek et al. 2020, arXiv:1911.00359): a model of n-grams is trained on reference text
(CCNet: Wikipedia of the same language), and the corpus is cut at quantiles of perplexity. Fields:
`perplexity` (per word; None where a document has no word) and `perplexity_bucket`: `head` (most
like the reference), `middle` or `tail`. Documents without a word are tail. What is of the same
perplexity is in the same bucket.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxtrain import files
from jaxtrain.corpus import ngram_model, selection
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import ReadingConfig, read_documents
from jaxtrain.corpus.inputs import check as check_inputs
from jaxtrain.corpus.ngram_model import NGramModel
from jaxtrain.corpus.step import Executor, Fields, Outcome, Workspace, load_observed
from jaxtrain.options import option

HEAD, MIDDLE, TAIL = BUCKETS = ("head", "middle", "tail")
_MODEL = "ngrams.npz"
_CUTS = "cuts.json"
_FIELDS = Fields(needs=(), writes={"perplexity": float, "perplexity_bucket": str})

Scorer = Callable[[Sequence[str]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Config:
    """The reference text and where the corpus is cut."""

    reference: tuple[str, ...] = option((), "inputs of text such as one wants, [name=]path or glob")
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    order: int = option(5, "words of the longest n-gram")  # CCNet: 5
    head_frac: float = option(0.3, "share of documents in the head, the least perplexing")  # CCNet
    middle_frac: float = option(0.3, "share of documents in the middle; the rest is tail")  # CCNet
    drop: tuple[str, ...] = option((), "buckets dropped, of head, middle and tail")
    kenlm_model: str | None = option(
        None, "a KenLM binary used instead of reference; its words are what white space parts"
    )

    def __post_init__(self) -> None:
        if not 1 <= self.order <= 8:
            raise ValueError(f"order={self.order} must lie between 1 and 8; 5 is usual")
        for name in ("head_frac", "middle_frac"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        if self.head_frac + self.middle_frac > 1:
            raise ValueError(
                f"middle_frac={self.middle_frac} and head_frac={self.head_frac} are more than "
                "all documents; lower one"
            )
        unknown = set(self.drop).difference(BUCKETS)
        if unknown:
            raise ValueError(f"drop names {sorted(unknown)}; it may hold {', '.join(BUCKETS)}")
        if self.kenlm_model and self.reference:
            raise ValueError("kenlm_model is set, so reference must be empty")


def check(config: Config) -> Fields:
    """The fields; refuses a config that says nothing to learn from, or a model that is none."""
    if config.kenlm_model:
        KenLM(config.kenlm_model)
        return _FIELDS
    if not config.reference:
        raise ValueError("reference is empty; name text to train on, or set kenlm_model")
    check_inputs("reference", config.reference, config.reading)
    return _FIELDS


def fit(config: Config, workspace: Workspace) -> None:
    """Trains the model, unless one of KenLM is named."""
    if config.kenlm_model:
        return
    texts = (document.text for document in read_documents(config.reference, config.reading))
    ngram_model.train(texts, config.order).save(workspace.models / _MODEL)


def make(config: Config, workspace: Workspace) -> "ScorePerplexity":
    """The step."""
    if config.kenlm_model:
        return ScorePerplexity(config, KenLM(config.kenlm_model), {})
    model = NGramModel.load(workspace.models / _MODEL)
    return ScorePerplexity(config, model.perplexities, model.facts)


class ScorePerplexity:
    """Sets `perplexity` and `perplexity_bucket`; drops the buckets that the config names."""

    needs, writes = _FIELDS

    def __init__(self, config: Config, scorer: Scorer, facts: Mapping[str, Any]):
        self._config, self._score, self._facts = config, scorer, facts
        self.rules: Sequence[str] = tuple(map(_rule, config.drop))

    def observe(self, chunk: Sequence[Document]) -> Mapping[str, np.ndarray]:
        """The perplexity of each document, also as an integer of the same order."""
        perplexity = self._score([document.text for document in chunk])
        return {"perplexity": perplexity, "rank": selection.ascending(perplexity)}

    def decide(
        self, observed: Sequence[pathlib.Path], executor: Executor, scratch: pathlib.Path
    ) -> Mapping[str, Any]:
        """Leaves the two cuts and the perplexities."""
        total = sum(len(load_observed(path)["rank"]) for path in observed)
        fractions = (self._config.head_frac, self._config.head_frac + self._config.middle_frac)
        ranks = [
            selection.kth_smallest(observed, ("rank",), math.ceil(min(1, frac) * total))[0]
            for frac in fractions
            if total
        ] or [0, 0]
        sizes = np.zeros(len(BUCKETS), np.int64)
        cuts: list[float | None] = [None, None]
        for index, path in enumerate(observed):
            arrays = load_observed(path)
            buckets = np.searchsorted(ranks, arrays["rank"], side="left")
            buckets[np.isnan(arrays["perplexity"])] = BUCKETS.index(TAIL)
            sizes += np.bincount(buckets, minlength=len(BUCKETS))
            for cut, rank in enumerate(ranks):
                at = arrays["perplexity"][arrays["rank"] == np.uint64(rank)]
                cuts[cut] = float(at[0]) if len(at) and not np.isnan(at[0]) else cuts[cut]
            with files.write_whole(scratch / f"{index}.npz") as file:
                np.savez(file, perplexity=arrays["perplexity"], bucket=buckets.astype(np.uint8))
        files.write_json(scratch / _CUTS, cuts)
        return {
            "buckets": dict(zip(BUCKETS, sizes.tolist(), strict=True)),
            "head_max_perplexity": cuts[0],
            "middle_max_perplexity": cuts[1],
            **{
                f"reference_{name}": self._facts[name] for name in ("texts", "words") if self._facts
            },
        }

    def apply(
        self, index: int, chunk: Sequence[Document], scratch: pathlib.Path
    ) -> Sequence[Outcome]:
        """As `decide` cut them."""
        cuts = files.read_json(scratch / _CUTS)
        verdicts = load_observed(scratch / f"{index}.npz")
        outcomes = []
        for document, value, number in zip(
            chunk, verdicts["perplexity"].tolist(), verdicts["bucket"].tolist(), strict=True
        ):
            perplexity, bucket = (None if math.isnan(value) else value), BUCKETS[number]
            fields = {"perplexity": perplexity, "perplexity_bucket": bucket}
            scored = document._replace(metadata={**document.metadata, **fields})
            if bucket in self._config.drop:
                outcomes.append(Outcome(scored, _rule(bucket), _because(perplexity, cuts)))
            else:
                outcomes.append(Outcome(scored))
        return outcomes


class KenLM:
    """Perplexity per word and end of text by a KenLM file, words being what white space parts."""

    def __init__(self, path: str):
        try:
            import kenlm
        except ImportError as error:
            raise ValueError(
                "kenlm_model is set, but kenlm is not installed; pip install kenlm"
            ) from error
        if not pathlib.Path(path).is_file():
            raise ValueError(f"kenlm_model={path}: no such file")
        try:
            self._model = kenlm.Model(path)
        except OSError as error:
            raise ValueError(f"kenlm_model={path} cannot be read: {error}") from error

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([self._perplexity(text.split()) for text in texts], np.float64)

    def _perplexity(self, words: Sequence[str]) -> float:
        if not words:
            return math.nan
        return 10 ** min(300.0, -self._model.score(" ".join(words)) / (len(words) + 1))


def _rule(bucket: str) -> str:
    return f"perplexity in the {bucket}"


def _because(perplexity: float | None, cuts: Sequence[float | None]) -> str:
    if perplexity is None:
        return "no word"
    head, middle = (f"{cut:.1f}" if cut is not None else "nothing" for cut in cuts)
    return f"perplexity {perplexity:.1f}, head to {head}, middle to {middle}"
