"""Drops documents whose lines are those of menus and lists: FineWeb's own rules.

Numbers: Penedo et al. 2024 (arXiv:2406.17557), section 3.6; that on newlines stands in the public
code only. There and in appendix E.4 the share of characters in duplicate lines is 0.01, not 0.1.
Lines are counted without the white space around them, blank ones left out.

What applies to which script: a Chinese or Japanese character counts as three letters of a line's
length; the end marks of all scripts end a line; text mostly in Thai or Lao, which write none, is
not judged by them.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from jaxtrain.corpus import words
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome, Workspace
from jaxtrain.corpus.thresholds import Verdict, above, judged, not_above, reaching, require_positive
from jaxtrain.options import option


@dataclasses.dataclass(frozen=True)
class Config:
    """FineWeb's thresholds; None turns a rule off."""

    min_punctuated_lines_frac: float | None = option(
        0.12, "share of lines ending in . ! ? or a quotation mark: dropped at it or below"
    )
    max_duplicate_line_chars_frac: float | None = option(
        0.1, "share of characters in lines that occurred before: dropped at it or above"
    )
    max_short_lines_frac: float | None = option(
        0.67, "share of short lines: dropped at it or above"
    )
    short_line_letters: int = option(30, "a line of so many letters or fewer is short")
    max_newlines_per_word: float | None = option(0.3, "newlines per word: dropped above it")

    def __post_init__(self):
        least = self.min_punctuated_lines_frac
        if least is not None and not 0 <= least < 1:
            raise ValueError(
                f"min_punctuated_lines_frac={least} must be in [0, 1); None turns the rule off"
            )
        for name in ("max_duplicate_line_chars_frac", "max_short_lines_frac"):
            most = getattr(self, name)
            if most is not None and not 0 < most <= 1:
                raise ValueError(
                    f"{name}={most} must be in (0, 1]: documents are dropped at it or above; "
                    "None turns the rule off"
                )
        require_positive(self, "short_line_letters", "max_newlines_per_word")


def make(config: Config, workspace: Workspace) -> "FineWeb":
    """The step."""
    return FineWeb(config)


class FineWeb:
    """Judges each document by its lines."""

    needs = ()
    writes: Mapping[str, type] = {}
    rules = (
        "no line",
        "too few punctuated lines",
        "characters in duplicate lines",
        "too many short lines",
        "too many newlines",
    )

    def __init__(self, config: Config):
        self._config = config

    def __call__(self, batch: Sequence[Document]) -> list[Outcome]:
        """Drops a document by the first rule that it fails."""
        return [judged(document, self._judge(document.text)) for document in batch]

    def _judge(self, text: str) -> Verdict | None:
        lines = words.filled_lines(text)
        if not lines:
            return Verdict("no line", "only white space")
        return (
            self._judge_ends(text, lines)
            or self._judge_duplicates(lines)
            or self._judge_lengths(lines)
            or self._judge_newlines(text)
        )

    def _judge_ends(self, text: str, lines: list[str]) -> Verdict | None:
        verdict = not_above(
            "too few punctuated lines",
            "share of lines that end in punctuation",
            sum(map(words.ends_sentence, lines)) / len(lines),
            self._config.min_punctuated_lines_frac,
        )
        return verdict if verdict and words.marks_sentences(text) else None

    def _judge_duplicates(self, lines: list[str]) -> Verdict | None:
        counts = Counter(lines)
        chars = sum((count - 1) * len(line) for line, count in counts.items() if count > 1)
        return reaching(
            "characters in duplicate lines",
            "share of characters",
            chars / sum(map(len, lines)),
            self._config.max_duplicate_line_chars_frac,
        )

    def _judge_lengths(self, lines: list[str]) -> Verdict | None:
        longest = self._config.short_line_letters
        # What is longer in characters is so in letters.
        candidates = [line for line in lines if len(line) <= longest]
        short = sum(words.length_in_letters(line) <= longest for line in candidates)
        return reaching(
            "too many short lines",
            f"share of lines of {longest} letters or fewer",
            short / len(lines),
            self._config.max_short_lines_frac,
        )

    def _judge_newlines(self, text: str) -> Verdict | None:
        limit = self._config.max_newlines_per_word
        newlines = text.count("\n")
        if limit is None or newlines == 0:
            return None
        per_word = newlines / words.count_words(text).total
        return above("too many newlines", "newlines per word", per_word, limit)
