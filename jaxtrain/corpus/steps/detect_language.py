"""Writes each document's language with its probability, and drops what is not wanted.

The model sees a sample: at most `sample_chars` characters, in four pieces spread evenly over the
text, with every run of white space (newlines too) as one space; so line breaks and a trailing
newline change nothing, and a long text costs no more than a short one. Text without a letter is
`und` (undetermined), score 0.
"""

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.language_id import UNKNOWN, FastText, Guess, Identifier, bundled_model
from jaxtrain.corpus.step import Outcome, Workspace
from jaxtrain.corpus.thresholds import require_min_frac, require_positive
from jaxtrain.options import option

_LETTER = re.compile(r"[^\W\d_]")
_NUM_PIECES = 4


@dataclasses.dataclass(frozen=True)
class Config:
    """Which languages stay, and how sure the model must be."""

    keep: tuple[str, ...] = option(
        (), "languages to keep, such as en or zh:0.5 with a least score of its own; () keeps all"
    )
    min_score: float | None = option(
        0.65, "least probability of the likeliest language (FineWeb, DCLM 0.65; C4 0.99)"
    )
    model: str | None = option(None, "a fastText model file (.bin, .ftz); None: py3langid's model")
    sample_chars: int = option(1000, "characters of a document that the model sees")

    def __post_init__(self):
        require_min_frac(self, "min_score")
        require_positive(self, "sample_chars")
        self.least_scores()

    def least_scores(self) -> dict[str, float | None]:
        """Least score of each language to keep."""
        scores = {}
        for entry in self.keep:
            language, colon, score = entry.partition(":")
            try:
                least = float(score) if colon else self.min_score
            except ValueError:
                least = -1.0
            if not language or (least is not None and not 0 < least <= 1):
                raise ValueError(
                    f"keep: {entry!r} must be a language, such as en, or one with a score in "
                    "(0, 1], such as en:0.8"
                )
            if language in scores:
                raise ValueError(f"keep: {language} is named twice; name it once")
            scores[language] = least
        return scores


def make(config: Config, workspace: Workspace) -> "DetectLanguage":
    """The step, with its model loaded.

    Raises:
      ValueError: a language of `keep` that the model does not know; a model that cannot be read.
    """
    identifier = FastText(config.model) if config.model else bundled_model()
    known = set(identifier.labels)
    for language in config.least_scores():
        if language not in known:
            named = [code for code in known if language.lower().startswith(code)]  # en of English
            near = named or difflib.get_close_matches(language, known, 3, 0.3) or known
            raise ValueError(
                f"keep: the model knows no language {language!r}; it has {len(known)} codes, among "
                f"them {', '.join(sorted(near)[:5])}"
            )
    return DetectLanguage(config, identifier)


class DetectLanguage:
    """Guesses by a model, keeps by a list."""

    needs = ()
    writes: Mapping[str, type] = {"language": str, "language_score": float}
    rules = ("language not kept", "language uncertain")

    def __init__(self, config: Config, identifier: Identifier):
        self._config = config
        self._least_scores = config.least_scores()
        self._identifier = identifier

    def __call__(self, batch: Sequence[Document]) -> list[Outcome]:
        """Every kept document has the fields `language` and `language_score`."""
        samples = [sample(document.text, self._config.sample_chars) for document in batch]
        tellable = [text for text in samples if _LETTER.search(text)]
        guesses = iter(self._identifier.guess(tellable))
        return [
            self._judge(document, next(guesses) if _LETTER.search(text) else UNKNOWN)
            for document, text in zip(batch, samples, strict=True)
        ]

    def _judge(self, document: Document, guess: Guess) -> Outcome:
        language, score = guess
        fields = {"language": language, "language_score": score}
        found = document._replace(metadata={**document.metadata, **fields})  # dropped ones too
        if self._least_scores and language not in self._least_scores:
            return Outcome(found, "language not kept", f"{language} at {score:.4g}")
        least = self._least_scores.get(language, self._config.min_score)
        if least is not None and score < least:
            return Outcome(found, "language uncertain", f"{language} at {score:.4g} < {least:g}")
        return Outcome(found)


def sample(text: str, num_chars: int) -> str:
    """At most `num_chars` characters of a text, white space as single spaces."""
    text = " ".join(text.split())
    if len(text) <= num_chars:
        return text
    length = -(-num_chars // _NUM_PIECES)
    starts = [number * (len(text) - length) // (_NUM_PIECES - 1) for number in range(_NUM_PIECES)]
    return " ".join(text[start : start + length] for start in starts)[:num_chars]
