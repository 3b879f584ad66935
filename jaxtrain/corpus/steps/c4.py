"""Drops lines that are no sentences, and pages that hold no text: C4's rules.

Numbers: Raffel et al. 2020 (arXiv:1910.10683), section 2.2, in its first form; its later form and
DCLM take 5 words a line and 3 sentences a page (`min_words_per_line=5, min_sentences=3`, TFDS 3
sentences). The page rules look at the whole page, as the paper says; TFDS looks at the lines that
the other rules leave. C4's two other rules are steps of their own: `detect_language` with
`min_score=0.99`, and `drop_repeated_spans` for spans of three sentences.

mC4 (Xue et al. 2021, arXiv:2010.11934) judges pages in any language by long lines instead:
`min_long_lines=3, drop_unfinished_lines=False, min_words_per_line=None, min_sentences=None,
line_phrases=(), page_phrases=()`. FineWeb sets `drop_unfinished_lines=False`.

What applies to which script: the end marks of all scripts end a line and a sentence; Thai and Lao
have none, so that their lines are never unfinished; words are those of `corpus/words.py`; the
phrases are English. A Chinese …… ends a line as a full stop does; `...` or a single … means that it
was cut off.
"""

import dataclasses
import pathlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from jaxtrain.corpus import words
from jaxtrain.corpus.bad_words import BadWords
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.line_dropping import drop_lines
from jaxtrain.corpus.step import Outcome, Workspace
from jaxtrain.corpus.thresholds import Verdict, below, judged, require_positive
from jaxtrain.options import option

CITATION_MARK = re.compile(r"\[(?:\d{1,9}|edit|citation needed)\]")
_MARK_AT_END = re.compile(rf"{CITATION_MARK.pattern}\Z")
_LONGEST_MARK = len("[citation needed]")


@dataclasses.dataclass(frozen=True)
class Config:
    """C4's rules; None, False or an empty list turns a rule off."""

    strip_citation_marks: bool = option(True, "cut [1], [edit] and [citation needed] out of lines")
    drop_unfinished_lines: bool = option(True, "drop lines that end in no . ! ? or quotation mark")
    min_words_per_line: int | None = option(3, "fewest words of a line")
    max_word_chars: int | None = option(1000, "longest word of a line, in characters")
    line_phrases: tuple[str, ...] = option(
        (
            "javascript",
            "terms of use",
            "privacy policy",
            "cookie policy",
            "uses cookies",
            "use of cookies",
            "use cookies",
        ),
        "a line with one of these, in any case, is dropped",
    )
    page_phrases: tuple[str, ...] = option(
        ("lorem ipsum", "{"), "a document with one of these, in any case, is dropped"
    )
    bad_words: str | None = option(
        None, "a file, one word or phrase a line: a document with one of them is dropped"
    )
    min_sentences: int | None = option(5, "fewest sentences of a document, in the lines left")
    min_long_lines: int | None = option(None, "fewest long lines of a document (mC4: 3)")
    long_line_chars: int = option(200, "a line of so many characters or more is long")

    def __post_init__(self):
        require_positive(self, "min_words_per_line", "max_word_chars", "min_sentences")
        require_positive(self, "min_long_lines", "long_line_chars")
        for name in ("line_phrases", "page_phrases"):
            for phrase in getattr(self, name):
                if not phrase or phrase != phrase.lower():
                    raise ValueError(
                        f"{name}: {phrase!r} is compared with text in lower case; "
                        "write it so, and not empty"
                    )
        if self.bad_words is not None and not pathlib.Path(self.bad_words).is_file():
            raise ValueError(f"bad_words={self.bad_words} is no file; name one, or None for none")


def make(config: Config, workspace: Workspace) -> "C4":
    """The step."""
    return C4(config)


class C4:
    """Removes marks and lines, and documents that are then too little."""

    needs = ()
    writes: Mapping[str, type] = {}

    def __init__(self, config: Config):
        self._config = config
        self._bad_words = BadWords.read(config.bad_words) if config.bad_words else None
        self.rules = (
            *(f"page with “{phrase}”" for phrase in config.page_phrases),
            "bad word",
            "citation mark",
            "line with a very long word",
            "unfinished line",
            "line of too few words",
            *(f"line with “{phrase}”" for phrase in config.line_phrases),
            "no line left",
            "too few sentences",
            "too few long lines",
        )

    def __call__(self, batch: Sequence[Document]) -> list[Outcome]:
        """Edits count the marks cut out and the lines removed by each rule."""
        return [self._clean(document) for document in batch]

    def _clean(self, document: Document) -> Outcome:
        text, edits = document.text, Counter[str]()
        if self._config.strip_citation_marks and "[" in text:
            text, edits["citation mark"] = _without_marks(text)
        lowered = text.lower()
        verdict = self._judge_page(lowered)
        if verdict:
            return judged(document, verdict)
        text, dropped = drop_lines(text, LineRules(self._config, lowered))
        edits += dropped  # this leaves zero counts out
        verdict = self._judge_rest(text, dropped.total())
        if verdict:
            return judged(document, verdict)
        return Outcome(document._replace(text=text) if edits else document, edits=dict(edits))

    def _judge_page(self, lowered: str) -> Verdict | None:
        for phrase in self._config.page_phrases:
            if phrase in lowered:
                return Verdict(f"page with “{phrase}”", f"{lowered.count(phrase)} times")
        found = self._bad_words.find(lowered) if self._bad_words else None
        return Verdict("bad word", f"“{found}”") if found else None

    def _judge_rest(self, text: str, num_dropped: int) -> Verdict | None:
        c = self._config
        lines = words.filled_lines(text)
        if not lines:
            return Verdict("no line left", f"{num_dropped} lines dropped")
        if c.min_sentences is not None and len(lines) < c.min_sentences:
            sentences = sum(map(words.count_sentences, lines))
            verdict = below("too few sentences", "sentences", sentences, c.min_sentences)
            if verdict:
                return verdict
        long_lines = sum(len(line) >= c.long_line_chars for line in lines)
        what = f"lines of {c.long_line_chars} characters or more"
        return below("too few long lines", what, long_lines, c.min_long_lines)


class LineRules:
    """The rule that removes a line of one text."""

    def __init__(self, config: Config, lowered: str):
        self._config = config
        # Looked for in the whole text first: hardly any text holds one of them.
        self._phrases = [phrase for phrase in config.line_phrases if phrase in lowered]

    def __call__(self, line: str) -> str | None:
        """A rule's name, or None where the line stays."""
        c = self._config
        longest = c.max_word_chars
        if longest is not None and len(line) > longest and _longest_word(line) > longest:
            return "line with a very long word"
        if c.drop_unfinished_lines and not is_finished(line) and words.marks_sentences(line):
            return "unfinished line"
        least = c.min_words_per_line
        if least is not None and not _has_words(line, least):
            return "line of too few words"
        if self._phrases:
            lowered = line.lower()
            for phrase in self._phrases:
                if phrase in lowered:
                    return f"line with “{phrase}”"
        return None


def is_finished(line: str) -> bool:
    """Whether a line ends in a mark that ends a sentence, and not in one that cuts it off."""
    if line.endswith(("...", "…")) and not line.endswith("……"):
        return False
    return words.ends_sentence(line)


def _longest_word(line: str) -> int:
    return max(map(len, words.split_words(line)))


def _has_words(line: str, least: int) -> bool:
    # White space parts at most as many as there are words: counting is for the rest.
    return len(line.split(None, least)) >= least or words.count_words(line).total >= least


def _without_marks(text: str) -> tuple[str, int]:
    text, count = CITATION_MARK.subn("", text)
    if count == 0 or not CITATION_MARK.search(text):
        return text, count
    # One stood in another, [[1]2]: cut each where it closes, in one walk however deep they lie.
    kept: list[str] = []
    for character in text:
        kept.append(character)
        mark = _MARK_AT_END.search("".join(kept[-_LONGEST_MARK:])) if character == "]" else None
        if mark:
            del kept[-len(mark[0]) :]
            count += 1
    return "".join(kept), count
