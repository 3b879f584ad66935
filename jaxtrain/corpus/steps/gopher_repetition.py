"""Drops documents that repeat themselves: Gopher's repetition rules.

Numbers: Rae et al. 2021 (arXiv:2112.11446), table A1. The paper leaves open what is counted; here:
lines and paragraphs (parted by blank lines) without the white space around them, blank ones left
out; a duplicate is every occurrence after the first; shares of characters are of those in words (or
lines), each character counted once however many n-grams hold it. An n-gram runs over line ends, and
the most frequent one counts only where it comes at least twice.

What applies to which script: every rule to every document. In one that is mostly in a script
without spaces, n words are 2 n letters (Chinese, Japanese) or 4 n (Thai, Lao, Tibetan, Myanmar,
Khmer), about as much text as n words of English. With n letters, over half of the Universal
Declaration of Human Rights would count as repeated in Thai.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jaxtrain.corpus import words
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.ngrams import NGrams, ngrams_of
from jaxtrain.corpus.step import Outcome, Workspace
from jaxtrain.corpus.thresholds import Verdict, above, judged, require_max_frac
from jaxtrain.options import option

TOP_SIZES = (2, 3, 4)
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)
_GROUP_CHARS = 1 << 17  # whose words lie in memory together


@dataclasses.dataclass(frozen=True)
class Config:
    """Gopher's thresholds; a document is dropped above them, None turns a rule off."""

    max_duplicate_lines_frac: float | None = option(0.30, "lines that occurred before")
    max_duplicate_paragraphs_frac: float | None = option(0.30, "paragraphs that occurred before")
    max_duplicate_line_chars_frac: float | None = option(0.20, "characters in duplicate lines")
    max_duplicate_paragraph_chars_frac: float | None = option(
        0.20, "characters in duplicate paragraphs"
    )
    max_top_2gram_chars_frac: float | None = option(0.20, "characters in the commonest 2-gram")
    max_top_3gram_chars_frac: float | None = option(0.18, "characters in the commonest 3-gram")
    max_top_4gram_chars_frac: float | None = option(0.16, "characters in the commonest 4-gram")
    max_duplicate_5gram_chars_frac: float | None = option(0.15, "characters in duplicate 5-grams")
    max_duplicate_6gram_chars_frac: float | None = option(0.14, "characters in duplicate 6-grams")
    max_duplicate_7gram_chars_frac: float | None = option(0.13, "characters in duplicate 7-grams")
    max_duplicate_8gram_chars_frac: float | None = option(0.12, "characters in duplicate 8-grams")
    max_duplicate_9gram_chars_frac: float | None = option(0.11, "characters in duplicate 9-grams")
    max_duplicate_10gram_chars_frac: float | None = option(0.10, "characters in duplicate 10-grams")

    def __post_init__(self):
        require_max_frac(self, *(field.name for field in dataclasses.fields(self)))


def make(config: Config, workspace: Workspace) -> "GopherRepetition":
    """The step."""
    return GopherRepetition(config)


class GopherRepetition:
    """Judges each document by its repeated lines, paragraphs and n-grams."""

    needs = ()
    writes: Mapping[str, type] = {}
    rules = (
        "duplicate lines",
        "duplicate paragraphs",
        "characters in duplicate lines",
        "characters in duplicate paragraphs",
        *(f"most frequent {n}-gram" for n in TOP_SIZES),
        *(f"duplicate {n}-grams" for n in DUPLICATE_SIZES),
    )

    def __init__(self, config: Config):
        self._config = config
        self._max_top = {n: getattr(config, f"max_top_{n}gram_chars_frac") for n in TOP_SIZES}
        limits = {n: getattr(config, f"max_duplicate_{n}gram_chars_frac") for n in DUPLICATE_SIZES}
        self._max_duplicate = {n: limit for n, limit in limits.items() if limit is not None}

    def __call__(self, batch: Sequence[Document]) -> list[Outcome]:
        """Drops a document by the first rule that it fails."""
        return [outcome for group in _groups(batch) for outcome in self._judge_group(group)]

    def _judge_group(self, documents: Sequence[Document]) -> list[Outcome]:
        verdicts = [self._judge_blocks(document.text) for document in documents]
        rest = [i for i, verdict in enumerate(verdicts) if verdict is None]
        for i, ngrams in zip(rest, ngrams_of([documents[i].text for i in rest]), strict=True):
            verdicts[i] = self._judge_top(ngrams) or self._judge_duplicates(ngrams)
        return [
            judged(document, verdict) for document, verdict in zip(documents, verdicts, strict=True)
        ]

    def _judge_blocks(self, text: str) -> Verdict | None:
        lines = words.filled_lines(text)
        if len(set(lines)) == len(lines):
            return None  # then no paragraph comes twice either
        c = self._config
        of_lines, of_line_chars = _duplicated(lines)
        of_paragraphs, of_paragraph_chars = _duplicated(words.paragraphs(text))
        return (
            above("duplicate lines", "share of lines", of_lines, c.max_duplicate_lines_frac)
            or above(
                "duplicate paragraphs",
                "share of paragraphs",
                of_paragraphs,
                c.max_duplicate_paragraphs_frac,
            )
            or above(
                "characters in duplicate lines",
                "share of characters",
                of_line_chars,
                c.max_duplicate_line_chars_frac,
            )
            or above(
                "characters in duplicate paragraphs",
                "share of characters",
                of_paragraph_chars,
                c.max_duplicate_paragraph_chars_frac,
            )
        )

    def _judge_top(self, ngrams: NGrams) -> Verdict | None:
        for n, limit in self._max_top.items():
            if limit is None or ngrams.top_bound(n) <= limit:
                continue
            share = ngrams.top_share(n)
            verdict = above(f"most frequent {n}-gram", "share of characters", share, limit)
            if verdict:
                return verdict
        return None

    def _judge_duplicates(self, ngrams: NGrams) -> Verdict | None:
        limits = self._max_duplicate
        for n, limit in limits.items():
            share = ngrams.duplicate_share(n)
            verdict = above(f"duplicate {n}-grams", "share of characters", share, limit)
            if verdict:
                return verdict
            # A repeated longer n-gram is made of repeated shorter ones, so it covers no more.
            if all(share <= limits[longer] for longer in limits if longer > n):
                return None
        return None


def _duplicated(blocks: list[str]) -> tuple[float, float]:
    """Shares of the blocks, and of their characters, that are repetitions of earlier ones."""
    counts = Counter(blocks)
    total = max(sum(map(len, blocks)), 1)
    chars = sum((count - 1) * len(block) for block, count in counts.items())
    return (len(blocks) - len(counts)) / max(len(blocks), 1), chars / total


def _groups(batch: Sequence[Document]) -> Iterator[Sequence[Document]]:
    start = size = 0
    for stop, document in enumerate(batch, 1):
        size += len(document.text)
        if size >= _GROUP_CHARS or stop == len(batch):
            yield batch[start:stop]
            start, size = stop, 0
