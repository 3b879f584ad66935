"""Drops lines that are no prose, and pages that lose much by it: RefinedWeb's rules, as in DCLM.

Numbers: Li et al. 2024 (arXiv:2406.11794), appendix J, after Penedo et al. 2023 (arXiv:2306.01116),
table 8. DCLM runs them after English ≥ 0.65 (`detect_language`) and Gopher's rules
(`gopher_quality`, `gopher_repetition`).

What applies to which script: upper case, counters and boilerplate are found where a script has
them (the phrases are English); the other rules hold for every script, words being those of
`corpus/words.py`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.line_dropping import drop_lines
from jaxtrain.corpus.step import Outcome, Workspace
from jaxtrain.corpus.thresholds import above, judged, require_max_frac, require_positive
from jaxtrain.corpus.words import count_words
from jaxtrain.options import option

_COUNTER = re.compile(
    r"[\d.,]+ ?[km]? ?(likes?|shares?|comments?|replies|retweets?|reposts?|quotes?|bookmarks?"
    r"|upvotes?|downvotes?|downloads?|views?|followers?)\.?",
    re.IGNORECASE,
)
_BOILERPLATE = re.compile(r"sign[- ]in\b.*|.*\bitems in cart\b.*|.*read more( ?\.{3}| ?…)?", re.I)


@dataclasses.dataclass(frozen=True)
class Config:
    """DCLM's thresholds; None turns a rule off."""

    max_chars: int | None = option(190_000, "characters of a page, before any line is removed")
    max_uppercase_chars_frac: float | None = option(0.5, "upper-case characters of a line")
    max_digits_frac: float | None = option(0.999999, "digits among the characters of a line")
    min_words_per_line: int | None = option(2, "words of a line")
    drop_counters: bool = option(True, "remove lines such as `3 likes`")
    max_boilerplate_words: int | None = option(
        10, "a line of at most so many words is removed for `sign in`, `read more`, `items in cart`"
    )
    max_removed_words_frac: float | None = option(0.05, "words of a page in the lines so removed")

    def __post_init__(self):
        require_positive(self, "max_chars", "min_words_per_line", "max_boilerplate_words")
        require_max_frac(self, "max_uppercase_chars_frac", "max_digits_frac")
        require_max_frac(self, "max_removed_words_frac")
        if self.min_words_per_line == 1:
            raise ValueError(
                "min_words_per_line=1: every line has a word; give 2 or more, or None to turn "
                "the rule off"
            )


def make(config: Config, workspace: Workspace) -> "Dclm":
    """The step."""
    return Dclm(config)


class Dclm:
    """Removes lines, and documents of which that removes too much."""

    needs = ()
    writes: Mapping[str, type] = {}
    rules = (
        "too long",
        "upper-case line",
        "numeric line",
        "counter",
        "line of too few words",
        "boilerplate line",
        "no line left",
        "too much removed",
    )

    def __init__(self, config: Config):
        self._config = config

    def __call__(self, batch: Sequence[Document]) -> list[Outcome]:
        """Edits count the lines removed by each rule."""
        return [self._clean(document) for document in batch]

    def _clean(self, document: Document) -> Outcome:
        c = self._config
        verdict = above("too long", "characters", len(document.text), c.max_chars)
        if verdict:
            return judged(document, verdict)
        text, edits = drop_lines(document.text, self._rule_of)
        if not text.strip():
            return Outcome(document, "no line left", f"removed {edits.total()} lines of as many")
        if not edits:
            return Outcome(document)
        before, after = count_words(document.text).total, count_words(text).total
        verdict = above(
            "too much removed",
            "share of words in removed lines",
            (before - after) / before,
            c.max_removed_words_frac,
        )
        if verdict:
            return judged(document, verdict)
        return Outcome(document._replace(text=text), edits=dict(edits))

    def _rule_of(self, line: str) -> str | None:
        c = self._config
        if c.max_uppercase_chars_frac is not None:
            most = c.max_uppercase_chars_frac * len(line)
            if line != line.lower() and sum(map(str.isupper, line)) > most:
                return "upper-case line"
        if line[0].isdigit():
            most = len(line) if c.max_digits_frac is None else c.max_digits_frac * len(line)
            if sum(map(str.isdigit, line)) > most:
                return "numeric line"
            if c.drop_counters and _COUNTER.fullmatch(line):
                return "counter"
        return self._rule_of_words(line)

    def _rule_of_words(self, line: str) -> str | None:
        least, most = self._config.min_words_per_line, self._config.max_boilerplate_words
        if len(line.split()) > max(least or 0, most or 0):  # there may be more words, never fewer
            return None
        num_words = count_words(line).total
        if least is not None and num_words < least:
            return "line of too few words"
        if most is not None and num_words <= most and _BOILERPLATE.fullmatch(line):
            return "boilerplate line"
        return None
