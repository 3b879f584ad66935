"""Scores how toxic documents are, by lists of words or a trained classifier, and drops or cuts.

A text is toxic by 1.0 where it holds a listed word, else by the probability that a linear
classifier (`corpus/linear_classifier.py`) trained on `toxic` and `harmless` text gives. Word lists
are files of the user, one entry a line: words are found whole, Chinese, Japanese and Thai entries
wherever they stand. The field `toxicity` of a document is that of its worst sentence, or of all of
its text, from 0 to 1.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from jaxtrain.corpus import linear_classifier
from jaxtrain.corpus.bad_words import BadWords
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import ReadingConfig, read_documents
from jaxtrain.corpus.inputs import check as check_inputs
from jaxtrain.corpus.linear_classifier import LinearClassifier
from jaxtrain.corpus.sentences import sentence_spans
from jaxtrain.corpus.step import Fields, Outcome, Workspace
from jaxtrain.options import option

_MODEL = "classifier.npz"
DROP_DOCUMENT, DROP_SENTENCE, MARK = ACTIONS = ("drop_document", "drop_sentence", "mark")
SENTENCE, DOCUMENT = UNITS = ("sentence", "document")
_TOXIC = "toxic"
_CUT = "toxic sentence"
_EMPTIED = "nothing but toxic sentences"
_FIELDS = Fields(needs=(), writes={"toxicity": float})


@dataclasses.dataclass(frozen=True)
class Config:
    """What counts as toxic, and what becomes of it."""

    word_lists: tuple[str, ...] = option((), "files of words, one entry a line, UTF-8")
    toxic: tuple[str, ...] = option((), "inputs of toxic text for the classifier, path or glob")
    harmless: tuple[str, ...] = option((), "inputs of harmless text for the classifier")
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    max_documents: int = option(100_000, "trained on, of each; more are sampled by their hashes")
    unit: str = option(SENTENCE, "what is scored: each sentence or the whole", choices=UNITS)
    threshold: float = option(0.4, "toxic from this score on")  # Dolma: a sentence at 0.4
    action: str = option(
        DROP_SENTENCE, "what becomes of it; mark: only the field is set", choices=ACTIONS
    )

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} must lie above 0 and up to 1")
        if bool(self.toxic) != bool(self.harmless):
            raise ValueError("toxic and harmless: a classifier needs both; set both or none")
        if self.action == DROP_SENTENCE and self.unit != SENTENCE:
            raise ValueError("action=drop_sentence needs unit=sentence; or choose drop_document")
        if self.max_documents < 2:
            raise ValueError(f"max_documents={self.max_documents} must be at least 2")


def check(config: Config) -> Fields:
    """The fields; refuses a config that says neither what is toxic nor what to learn it from."""
    if not config.word_lists and not config.toxic:
        raise ValueError("word_lists and toxic are empty; name a list, or text to train on")
    for path in config.word_lists:
        if not pathlib.Path(path).is_file():
            raise ValueError(f"word_lists: {path}: no such file")
        BadWords.read(path)
    if config.toxic:
        check_inputs("toxic", config.toxic, config.reading)
        check_inputs("harmless", config.harmless, config.reading)
    return _FIELDS


def fit(config: Config, workspace: Workspace) -> None:
    """Trains the classifier, where there is text for it."""
    if config.toxic:
        samples = [
            linear_classifier.sample(
                (document.text for document in read_documents(inputs, config.reading)),
                config.max_documents,
            )
            for inputs in (config.toxic, config.harmless)
        ]
        linear_classifier.train(*samples).save(workspace.models / _MODEL)


def make(config: Config, workspace: Workspace) -> "FlagToxicity":
    """The step."""
    classifier = LinearClassifier.load(workspace.models / _MODEL) if config.toxic else None
    return FlagToxicity(config, [BadWords.read(path) for path in config.word_lists], classifier)


class FlagToxicity:
    """Sets `toxicity`; drops documents, cuts sentences or leaves all as it is."""

    needs, writes = _FIELDS

    def __init__(
        self, config: Config, lists: Sequence[BadWords], classifier: LinearClassifier | None
    ):
        self._config, self._lists, self._classifier = config, lists, classifier
        self.rules: Sequence[str] = {
            DROP_DOCUMENT: (_TOXIC,),
            DROP_SENTENCE: (_CUT, _EMPTIED),
            MARK: (),
        }[config.action]

    def __call__(self, batch: Sequence[Document]) -> Sequence[Outcome]:
        spans = [self._spans(document.text) for document in batch]
        units = [
            [document.text[start:end] for start, end in each]
            for document, each in zip(batch, spans, strict=True)
        ]
        predicted = self._predicted([unit for each in units for unit in each])
        outcomes, done = [], 0
        for document, each, texts in zip(batch, spans, units, strict=True):
            scores = predicted[done : done + len(each)]
            done += len(each)
            if self._is_listed(document.text):  # quicker than sentence by sentence
                scores = np.where([self._is_listed(text) for text in texts], 1.0, scores)
            outcomes.append(self._judge(document, each, scores))
        return outcomes

    def _spans(self, text: str) -> list[tuple[int, int]]:
        return sentence_spans(text) if self._config.unit == SENTENCE else [(0, len(text))]

    def _predicted(self, texts: Sequence[str]) -> np.ndarray:
        return self._classifier.score(texts) if self._classifier else np.zeros(len(texts))

    def _is_listed(self, text: str) -> bool:
        lowered = text.lower()
        return any(words.find(lowered) is not None for words in self._lists)

    def _judge(
        self, document: Document, spans: Sequence[tuple[int, int]], scores: np.ndarray
    ) -> Outcome:
        toxicity = float(scores.max(initial=0.0))
        if self._config.action == MARK or toxicity < self._config.threshold:
            return Outcome(_with_toxicity(document, toxicity))
        because = f"toxicity {toxicity:.4f} ≥ {self._config.threshold}"
        if self._config.action == DROP_DOCUMENT:
            return Outcome(_with_toxicity(document, toxicity), _TOXIC, because)
        toxic = scores >= self._config.threshold
        if toxic.all():
            return Outcome(_with_toxicity(document, toxicity), _EMPTIED, because)
        text = _without(document.text, [s for s, cut in zip(spans, toxic, strict=True) if cut])
        kept = _with_toxicity(document._replace(text=text), float(scores[~toxic].max()))
        return Outcome(kept, edits={_CUT: int(toxic.sum())})


def _with_toxicity(document: Document, toxicity: float) -> Document:
    return document._replace(metadata={**document.metadata, "toxicity": toxicity})


def _without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """`text` without the spans, each inside a line; a line of which nothing is left goes whole."""
    lines, start, left = [], 0, list(reversed(spans))
    for line in text.split("\n"):
        pieces, done = [], 0
        while left and left[-1][0] < start + len(line):
            first, last = left.pop()
            pieces.append(line[done : first - start])
            done = last - start
            while done < len(line) and line[done].isspace():
                done += 1
        cut = "".join([*pieces, line[done:]]).rstrip() if pieces else line
        if cut or not pieces:
            lines.append(cut)
        start += len(line) + 1
    return "\n".join(lines)
