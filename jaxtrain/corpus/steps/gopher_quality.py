"""Drops documents whose words, symbols and lines are not those of prose: Gopher's quality rules.

Numbers: Rae et al. 2021 (arXiv:2112.11446), A.1.1. Words are those of `corpus/words.py`. What
applies to which script: word lengths are judged on words of scripts with spaces, and only where
they are at least half of all words; stop words are English and judged on English (below); every
other rule on every document.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtrain.corpus import words
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome, Workspace
from jaxtrain.corpus.thresholds import (
    Verdict,
    above,
    below,
    judged,
    require_max_frac,
    require_min_frac,
    require_order,
    require_positive,
)
from jaxtrain.corpus.words import WordCounts
from jaxtrain.options import option

STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
# The paper says "bullet point"; these are the marks that lists are written with.
BULLETS = ("•", "‣", "⁃", "◦", "▪", "●", "・", "-", "*")

_LETTER = re.compile(r"[^\W\d_]")
_LATIN_LETTER = re.compile(r"[A-Za-zÀ-ɏ]")
_NOT_LETTERS = re.compile(r"[\W\d_]+")


@dataclasses.dataclass(frozen=True)
class Config:
    """Gopher's thresholds; None turns a rule off."""

    min_words: int | None = option(50, "fewest words a document may have")
    max_words: int | None = option(100_000, "most words a document may have")
    min_mean_word_length: float | None = option(3, "characters, of words of scripts with spaces")
    max_mean_word_length: float | None = option(10, "characters, of words of scripts with spaces")
    max_hashes_per_word: float | None = option(0.1, "number signs (#) per word")
    max_ellipses_per_word: float | None = option(0.1, "ellipses (… or three full stops) per word")
    max_bullet_lines_frac: float | None = option(0.9, "share of lines that begin with a bullet")
    max_ellipsis_lines_frac: float | None = option(0.3, "share of lines that end in an ellipsis")
    min_alphabetic_words_frac: float | None = option(
        0.8, "least share of words that hold a letter; lower keeps more"
    )
    min_stop_words: int | None = option(
        2,
        "different English stop words that an English document must hold (`language` is en; "
        "where no step wrote `language`: most letters are Latin)",
    )

    def __post_init__(self):
        require_positive(self, "min_words", "max_words", "min_mean_word_length")
        require_positive(self, "max_mean_word_length", "max_hashes_per_word")
        require_positive(self, "max_ellipses_per_word", "min_stop_words")
        require_max_frac(self, "max_bullet_lines_frac", "max_ellipsis_lines_frac")
        require_min_frac(self, "min_alphabetic_words_frac")
        require_order(self, "min_words", "max_words")
        require_order(self, "min_mean_word_length", "max_mean_word_length")
        if self.min_stop_words is not None and self.min_stop_words > len(STOP_WORDS):
            raise ValueError(
                f"min_stop_words={self.min_stop_words}: there are {len(STOP_WORDS)} of them; "
                f"give 1 to {len(STOP_WORDS)}"
            )


def make(config: Config, workspace: Workspace) -> "GopherQuality":
    """The step."""
    return GopherQuality(config)


class GopherQuality:
    """Judges each document by its words and lines."""

    needs = ()  # `language` is read where an earlier step wrote it
    writes: Mapping[str, type] = {}
    rules = (
        "too few words",
        "too many words",
        "words too short",
        "words too long",
        "too many hashes",
        "too many ellipses",
        "too many bullet lines",
        "too many lines ending in an ellipsis",
        "too few alphabetic words",
        "too few stop words",
    )

    def __init__(self, config: Config):
        self._config = config

    def __call__(self, batch: Sequence[Document]) -> list[Outcome]:
        """Drops a document by the first rule that it fails."""
        return [judged(document, self._judge(document)) for document in batch]

    def _judge(self, document: Document) -> Verdict | None:
        text = document.text
        counts = words.count_words(text)
        return (
            self._judge_words(counts)
            or self._judge_symbols(text, max(counts.total, 1))
            or self._judge_lines(text)
            or self._judge_letters(counts)
            or self._judge_stop_words(text, counts, document.metadata.get("language"))
        )

    def _judge_words(self, counts: WordCounts) -> Verdict | None:
        c = self._config
        verdict = below("too few words", "words", counts.total, c.min_words) or above(
            "too many words", "words", counts.total, c.max_words
        )
        if verdict or not counts.spaced or counts.mostly_unspaced:
            return verdict
        length = sum(map(len, counts.spaced)) / len(counts.spaced)
        return below(
            "words too short", "mean word length", length, c.min_mean_word_length
        ) or above("words too long", "mean word length", length, c.max_mean_word_length)

    def _judge_symbols(self, text: str, num_words: int) -> Verdict | None:
        hashes = text.count("#")
        ellipses = 0
        if "..." in text or "…" in text or "。。。" in text:
            ellipses = len(words.ELLIPSIS.findall(text))
        c = self._config
        return above(
            "too many hashes", "# per word", hashes / num_words, c.max_hashes_per_word
        ) or above(
            "too many ellipses", "ellipses per word", ellipses / num_words, c.max_ellipses_per_word
        )

    def _judge_lines(self, text: str) -> Verdict | None:
        lines = words.filled_lines(text)
        count = max(len(lines), 1)
        bullets = sum(line.startswith(BULLETS) for line in lines)
        ellipses = sum(line.endswith(("...", "…", "。。。")) for line in lines)
        c = self._config
        return above(
            "too many bullet lines",
            "share of lines that begin with a bullet",
            bullets / count,
            c.max_bullet_lines_frac,
        ) or above(
            "too many lines ending in an ellipsis",
            "share of lines that end in an ellipsis",
            ellipses / count,
            c.max_ellipsis_lines_frac,
        )

    def _judge_letters(self, counts: WordCounts) -> Verdict | None:
        least, total = self._config.min_alphabetic_words_frac, max(counts.total, 1)
        mixed = list(itertools.filterfalse(str.isalpha, counts.spaced))
        if least is None or (counts.total - len(mixed)) / total >= least:
            return None  # enough are nothing but letters
        without = sum(_LETTER.search(word) is None for word in mixed)
        return below(
            "too few alphabetic words",
            "share of words with a letter",
            (counts.total - without) / total,
            least,
        )

    def _judge_stop_words(self, text: str, counts: WordCounts, language: Any) -> Verdict | None:
        least = self._config.min_stop_words
        if least is None or len(STOP_WORDS.intersection(counts.spaced)) >= least:
            return None
        found = STOP_WORDS.intersection(_NOT_LETTERS.split(text.lower()))
        if language is None:
            is_judged = not counts.mostly_unspaced and _is_mostly_latin(text)
            what = "stop words of a text in Latin letters, language unknown,"
        else:
            is_judged, what = language == "en", "stop words of an English text"
        return below("too few stop words", what, len(found), least) if is_judged else None


def _is_mostly_latin(text: str) -> bool:
    return 2 * len(_LATIN_LETTER.findall(text)) > len(_LETTER.findall(text))
