"""What tokenizers make of texts, side by side: figures as JSON values, and a page of Markdown.

Every figure is a count or a ratio of counts over the same texts, by source and by language. A word
is a run of letters, marks and digits. Scripts that are written without spaces (Han, kana, Thai …)
have none: where they are more than a tenth of the letters, the tokens per character tell.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import regex

from jaxtrain.tokenizer.pitfalls import check_pitfalls
from jaxtrain.tokenizer.tokenizer import Tokenizer

_UNSPACED: Final = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD: Final = regex.compile(rf"(?V1)[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED}]]+")
_UNSPACED_RUN: Final = regex.compile(rf"[{_UNSPACED}]+")
_MAX_UNSPACED_FRAC: Final = 0.1  # of letters and digits
_RARE: Final = 10  # uses
_BATCH: Final = 256  # texts


class Text(NamedTuple):
    """A text, and the groups that it is counted in."""

    source: str
    language: str  # "" where it is not known
    text: str


@dataclasses.dataclass
class _Amount:
    """Sums over the texts of a group."""

    documents: int = 0
    bytes: int = 0
    characters: int = 0
    words: int = 0
    word_characters: int = 0
    unspaced_characters: int = 0

    @property
    def has_words(self) -> bool:
        """Whether a word is a measure of these texts."""
        letters = self.word_characters + self.unspaced_characters
        return self.unspaced_characters <= _MAX_UNSPACED_FRAC * letters

    def add(self, text: str) -> None:
        self.documents += 1
        self.bytes += len(text.encode())
        self.characters += len(text)
        words = [len(match[0]) for match in _WORD.finditer(text)]
        self.words += len(words)
        self.word_characters += sum(words)
        self.unspaced_characters += sum(len(each[0]) for each in _UNSPACED_RUN.finditer(text))


class _Measured:
    """What one tokenizer has made of the texts so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.uses = np.zeros(tokenizer.vocab_size, np.int64)
        self.tokens: dict[str, int] = {}
        self.changed: dict[str, int] = {}

    def add(self, texts: Sequence[Text]) -> None:
        encoded = self.tokenizer.encode_batch([each.text for each in texts])
        for text, ids in zip(texts, encoded, strict=True):
            self.uses += np.bincount(ids, minlength=len(self.uses))
            is_changed = self.tokenizer.decode(ids) != text.text
            for group in _groups(text):
                self.tokens[group] = self.tokens.get(group, 0) + len(ids)
                self.changed[group] = self.changed.get(group, 0) + is_changed


def measure(
    tokenizers: Mapping[str, Tokenizer],
    texts: Iterable[Text],
    d_model: int,
    max_bytes: int,
) -> dict[str, Any]:
    """All figures, as JSON values.

    Args:
      d_model: width of the model whose embedding parameters are counted.
      max_bytes: of each source no more than about this much text is looked at, from its beginning.

    Raises:
      ValueError: where there is no text.
    """
    amounts: dict[str, _Amount] = {}
    measured = {name: _Measured(tokenizer) for name, tokenizer in tokenizers.items()}
    for batch in _batches(_within(texts, max_bytes)):
        for text in batch:
            for group in _groups(text):
                amounts.setdefault(group, _Amount()).add(text.text)
        for each in measured.values():
            each.add(batch)
    if not amounts:
        raise ValueError("there is no text to report on")
    order = sorted(amounts, key=lambda group: (_ORDER.index(group.split(":")[0]), group))
    return {
        "texts": {group: dataclasses.asdict(amounts[group]) for group in order},
        "d_model": d_model,
        "tokenizers": {
            name: _figures(each, {group: amounts[group] for group in order}, d_model)
            for name, each in measured.items()
        },
    }


_ORDER: Final = ("all", "source", "language")


def _groups(text: Text) -> list[str]:
    named = [f"source: {text.source}"] + ([f"language: {text.language}"] if text.language else [])
    return ["all", *named]


def _within(texts: Iterable[Text], max_bytes: int) -> Iterator[Text]:
    seen: dict[str, int] = {}
    for text in texts:
        if seen.get(text.source, 0) < max_bytes:
            seen[text.source] = seen.get(text.source, 0) + len(text.text.encode())
            yield text


def _batches(texts: Iterator[Text]) -> Iterator[list[Text]]:
    while batch := list(itertools.islice(texts, _BATCH)):
        yield batch


def _figures(measured: _Measured, amounts: Mapping[str, _Amount], d_model: int) -> dict[str, Any]:
    tokenizer = measured.tokenizer
    special = set(tokenizer.special_token_ids)
    ordinary = np.array([each not in special for each in range(tokenizer.vocab_size)])
    uses = measured.uses[ordinary]
    return {
        "kind": tokenizer.kind,
        "sha256": tokenizer.sha256,
        "engine": tokenizer.engine,
        "normalization": tokenizer.normalization,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": len(special),
        "reserved_tokens": len(tokenizer.reserved_ids),
        "unused_tokens": int((uses == 0).sum()),
        f"tokens_used_at_most_{_RARE}_times": int(((uses > 0) & (uses <= _RARE)).sum()),
        "embedding_parameters": tokenizer.vocab_size * d_model,
        "groups": {
            group: _ratios(amount, measured.tokens[group], measured.changed[group])
            for group, amount in amounts.items()
        },
        "pitfalls": check_pitfalls(tokenizer),
    }


def _ratios(amount: _Amount, num_tokens: int, num_changed: int) -> dict[str, Any]:
    return {
        "tokens": num_tokens,
        "bytes_per_token": _ratio(amount.bytes, num_tokens),
        "tokens_per_character": _ratio(num_tokens, amount.characters),
        "tokens_per_word": _ratio(num_tokens, amount.words) if amount.has_words else None,
        "round_trip_failures": num_changed,
    }


def _ratio(above: int, below: int) -> float | None:
    return round(above / below, 4) if below else None


def markdown(found: Mapping[str, Any]) -> str:
    """The figures as a page."""
    tokenizers = found["tokenizers"]
    lines = ["# Tokenizers", "", *_overview(tokenizers, found["d_model"])]
    columns = (
        ("Bytes per token", "bytes_per_token", ".3f"),
        ("Tokens per character", "tokens_per_character", ".3f"),
        ("Tokens per word", "tokens_per_word", ".3f"),
        ("Documents that do not come back as they were", "round_trip_failures", ",d"),
    )
    for title, key, form in columns:
        rows = [
            [group, f"{amount['documents']:,}", f"{amount['bytes'] / 1e6:,.2f}"]
            + [_shown(each["groups"][group][key], form) for each in tokenizers.values()]
            for group, amount in found["texts"].items()
        ]
        lines += ["", f"## {title}", "", *_table(["texts", "documents", "MB", *tokenizers], rows)]
    return "\n".join([*lines, "", *_pitfalls(tokenizers)]) + "\n"


def _overview(tokenizers: Mapping[str, Any], d_model: int) -> list[str]:
    shortest = min(each["groups"]["all"]["tokens"] for each in tokenizers.values())
    rows = {
        "kind": lambda each: each["kind"],
        "encoded by": lambda each: each["engine"],
        "normalization": lambda each: each["normalization"],
        "ids": lambda each: f"{each['vocab_size']:,}",
        "special (reserved) ids": lambda each: (
            f"{each['special_tokens']:,} ({each['reserved_tokens']:,})"
        ),
        "tokens that these texts do not use": lambda each: f"{each['unused_tokens']:,}",
        f"… that they use at most {_RARE} times": lambda each: (
            f"{each[f'tokens_used_at_most_{_RARE}_times']:,}"
        ),
        f"embedding at width {d_model:,}, millions of parameters": lambda each: (
            f"{each['embedding_parameters'] / 1e6:,.1f} (tied head), "
            f"{each['embedding_parameters'] / 5e5:,.1f} (untied)"
        ),
        "length of these texts, tokens": lambda each: f"{each['groups']['all']['tokens']:,}",
        "… against the shortest": lambda each: (
            f"{each['groups']['all']['tokens'] / max(shortest, 1):.3f}"
        ),
    }
    body = [[title, *(show(each) for each in tokenizers.values())] for title, show in rows.items()]
    return _table(["", *tokenizers], body)


def _pitfalls(tokenizers: Mapping[str, Any]) -> list[str]:
    names = list(next(iter(tokenizers.values()))["pitfalls"])
    rows = [
        [name, *(_verdict(each["pitfalls"][name]) for each in tokenizers.values())]
        for name in names
    ]
    return ["## What is kept of a text", "", *_table(["", *tokenizers], rows)]


def _verdict(check: Mapping[str, Any]) -> str:
    return "kept" if check["kept"] else f"{check['text']!a} → {check['came_back']!a}"


def _shown(value: float | int | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(header), line(["---"] * len(header)), *(line(row) for row in rows)]
