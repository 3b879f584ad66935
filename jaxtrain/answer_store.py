"""Answers into a token store: which is the better, or how good each is, beside its ids and mask.

What the store holds is its setting "answers": `pairs` (chosen, rejected), `ranks` (two or more,
best first), `labels` (desirable or not) or `steps` (a verdict at the last token of each). Answers
that are compared are one group of documents, which stands in one row of a batch.

Of labelled answers, `kl_group` rows in their order make a group, with as many mismatched ones after
them (the prompt of one row, the answer of the next): from these KTO estimates how far the policy is
from its reference. So the estimate depends on the store alone, not on batches or packing.
"""

import argparse
import collections
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from jaxtrain import row_store
from jaxtrain.conversations import comparisons
from jaxtrain.conversations import ledger as ledger_lib
from jaxtrain.conversations.comparisons import LABELS, PAIRS, RANKS, STEP_SEPARATOR, Comparison
from jaxtrain.conversations.examples import DROP, LEFT, Maker
from jaxtrain.conversations.forms import BadRow, Dropped
from jaxtrain.conversations.groups import (
    LIST,
    RANKED,
    TOO_LONG,
    Answer,
    Group,
    fitted,
    kind_of,
    make_groups,
)
from jaxtrain.conversations.rows import Row
from jaxtrain.row_store import Document

WHAT: Final = "comparisons of answers"
KIND: Final = "answers"  # the setting that says what a store holds
_VERDICTS: Final = {1.0: "desirable", -1.0: "undesirable", 0.0: "mismatched"}
_ALONE: Final = "alone: there is no other answer to estimate the KL with"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides a store beside rows, tokenizer and template."""

    form: str | None = None  # a key of comparisons.FORMS; None: by each row's keys
    max_len: int | None = None
    too_long: str = DROP
    ranked: str = LIST
    kl_group: int = 4
    step_separator: str = STEP_SEPARATOR


@dataclasses.dataclass
class Ledger(ledger_lib.Ledger):
    """What became of the rows."""

    groups: int = 0
    answers: int = 0
    longest_group: int = 0  # tokens
    pairs_left_out: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )
    mismatched: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def take_group(self, group: Group) -> None:
        """Counts a group of documents."""
        self.groups += 1
        self.answers += len(group)
        length = sum(len(answer.example.ids) for answer in group)
        self.longest_group = max(self.longest_group, length)

    def lines(self) -> Iterator[str]:
        yield from super().lines()
        for reason, count in sorted(self.pairs_left_out.items()):
            yield f"  pairs left out of rows with others: {count:,} {reason}"
        for what, count in sorted(self.mismatched.items()):
            yield f"  mismatched answers, to estimate the KL: {count:,} {what}"
        yield (
            f"{self.answers:,} answers in {self.groups:,} groups; the longest has "
            f"{self.longest_group:,} tokens, so config.data.seq_len must be that or more"
        )

    def plain(self) -> dict[str, Any]:
        return {
            **super().plain(),
            "groups": self.groups,
            "answers": self.answers,
            "longest_group_tokens": self.longest_group,
            "pairs_left_out": dict(sorted(self.pairs_left_out.items())),
            "mismatched": dict(sorted(self.mismatched.items())),
        }


class _Labelled(NamedTuple):
    """A judged answer that waits for its group."""

    row: Row
    comparison: Comparison
    answer: Answer


class Source(row_store.Source[Ledger]):
    """Rows with preferences, and what makes groups of answers of them."""

    def __init__(
        self,
        given: Sequence[str],
        tokenizer: pathlib.Path,
        template: str | None,
        settings: Settings,
    ) -> None:
        """Args and errors: as those of `row_store.Source`."""
        super().__init__(given, tokenizer, template)
        self.settings = settings
        self.maker = Maker(self.tokenizer, self.chat_template, settings.max_len, settings.too_long)

    @functools.cached_property
    def _first(self) -> tuple[str, Row] | None:
        """The kind of the first row that has one, which is that of all."""
        for row in self.rows:
            try:
                return kind_of(self._comparison(row), self.settings.ranked), row
            except (BadRow, Dropped):
                continue
        return None

    @property
    def deciding(self) -> Mapping[str, Any]:
        return {**dataclasses.asdict(self.settings), KIND: self._first and self._first[0]}

    def new_ledger(self, max_bad_frac: float) -> Ledger:
        return Ledger(max_bad_frac, WHAT)

    def documents(self, ledger: Ledger) -> Iterator[Document]:
        is_labelled = self._first is not None and self._first[0] == LABELS
        find = self._groups_of_labelled if is_labelled else self._groups
        for rows, group in find(ledger):
            ledger.take_group(group)
            for number, (row, answer) in enumerate(zip(rows, group, strict=True)):
                yield Document(row, answer.example, answer.value, number > 0, answer.labels)
        ledger.check(done=True)

    def known_of(self, group: Sequence[Document]) -> Sequence[str]:
        assert self._first is not None
        kind, values = self._first[0], [document.value or 0.0 for document in group]
        if kind == PAIRS:
            margin = f", margin {values[0]:g}" if values[0] else ""
            return [f"chosen{margin}: ", "rejected: "]
        if kind == RANKS:
            scores = [f", score {value:g}" if any(values) else "" for value in values]
            return [f"place {place}{score}: " for place, score in enumerate(scores, 1)]
        if kind == LABELS:
            return [f"{_VERDICTS[value]}: " for value in values]
        return [""] * len(group)

    def _comparison(self, row: Row) -> Comparison:
        record = row_store.record_of(row)
        return comparisons.read(record, self.settings.form, self.settings.step_separator)

    def _read(self, ledger: Ledger) -> Iterator[tuple[Row, Comparison]]:
        """The comparison of each row that is one of this store's kind."""
        for row in self.rows:
            ledger.rows_in += 1
            try:
                comparison = self._comparison(row)
            except (BadRow, Dropped) as error:
                self._leave_out(error, row, ledger)
                continue
            self._check_kind(comparison, row)
            yield row, comparison

    def _leave_out(self, error: BadRow | Dropped, row: Row, ledger: Ledger) -> None:
        ledger.leave_out(error, row)
        ledger.check(done=False)

    def _check_kind(self, comparison: Comparison, row: Row) -> None:
        assert self._first is not None
        kind, first = self._first
        found = kind_of(comparison, self.settings.ranked)
        if found != kind:
            raise ValueError(
                f"{first.place} has {kind}, and {row.place} has {found}; a store holds one kind of "
                "answers: make one of each"
            )

    def _groups(self, ledger: Ledger) -> Iterator[tuple[Sequence[Row], Group]]:
        for row, comparison in self._read(ledger):
            try:
                groups, left_out = make_groups(comparison, self.maker, self.settings.ranked)
            except (BadRow, Dropped) as error:
                self._leave_out(error, row, ledger)
                continue
            ledger.pairs_left_out += left_out
            ledger.take([answer.example for group in groups for answer in group])
            for group in groups:
                yield [row] * len(group), group

    def _groups_of_labelled(self, ledger: Ledger) -> Iterator[tuple[Sequence[Row], Group]]:
        """Groups of `kl_group`; what is left at the end is one too, or joins the last.

        Two rows more than a group are waited for, so that none is ever alone.
        """
        size = self.settings.kl_group
        waiting: list[_Labelled] = []
        for row, comparison in self._read(ledger):
            try:
                (group,), _ = make_groups(comparison, self.maker)
            except (BadRow, Dropped) as error:
                self._leave_out(error, row, ledger)
                continue
            waiting.append(_Labelled(row, comparison, group[0]))
            if size == 1:
                ledger.take([group[0].example])
                yield [row], [waiting.pop().answer]
            elif len(waiting) >= size + 2:
                yield from self._take_group(waiting, size, ledger)
        while len(waiting) > 1:
            yield from self._take_group(waiting, len(waiting), ledger)
        if waiting:
            self._leave_out(Dropped(_ALONE), waiting[0].row, ledger)

    def _take_group(
        self, waiting: list[_Labelled], size: int, ledger: Ledger
    ) -> Iterator[tuple[Sequence[Row], Group]]:
        """Takes a group from those that wait; a row that takes no other answer is left out."""
        judged = waiting[:size]
        mismatched: list[Answer] = []
        for number, this in enumerate(judged):
            following = judged[(number + 1) % size]
            try:
                mismatched.append(self._mismatched(this.comparison, following.comparison))
            except (BadRow, Dropped) as error:
                del waiting[number]
                self._leave_out(error, this.row, ledger)
                return
        del waiting[:size]
        for this, answer in zip(judged, mismatched, strict=True):
            ledger.take([this.answer.example, answer.example._replace(cut=None)])
            if answer.example.cut:
                ledger.mismatched[f"cut by {answer.example.cut}"] += 1
        for this, following in zip(judged, judged[1:] + judged[:1], strict=True):
            if this.comparison.prompt == following.comparison.prompt:
                ledger.mismatched["with an answer to the same prompt; shuffle the rows"] += 1
        rows = [each.row for each in judged]
        yield rows + rows, [each.answer for each in judged] + mismatched

    def _mismatched(self, this: Comparison, following: Comparison) -> Answer:
        """One row's prompt with the next row's answer; its prompt is cut where it is too long."""
        mixed = this._replace(answers=following.answers, values=(0.0,))
        (example,) = fitted(mixed, dataclasses.replace(self.maker, too_long=LEFT))
        return Answer(example)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `tokenize answers`."""
    row_store.add_options(parser, WHAT)
    parser.add_argument(
        "--form", choices=comparisons.FORMS, help="of the rows (by each row's keys)"
    )
    parser.add_argument(
        "--max_len", type=int, metavar="N", help="tokens of a prompt with one answer (any)"
    )
    parser.add_argument(
        "--too_long",
        choices=TOO_LONG,
        default=DROP,
        help="what becomes of longer ones: dropped, or their prompt cut at its left, for all "
        "answers alike (drop)",
    )
    parser.add_argument(
        "--ranked",
        choices=RANKED,
        default=LIST,
        help="what a ranked list of answers becomes (list)",
    )
    parser.add_argument(
        "--kl_group",
        type=int,
        default=Settings.kl_group,
        metavar="N",
        help="labelled answers that share an estimate of KTO's KL, made of as many mismatched "
        f"answers; 1: none ({Settings.kl_group})",
    )
    parser.add_argument(
        "--step_separator",
        default=STEP_SEPARATOR,
        metavar="TEXT",
        help="between the steps of an answer (a line break)",
    )


def from_options(options: argparse.Namespace) -> Source:
    """The source that a command line names.

    Raises:
      ValueError: where it cannot be.
    """
    if options.kl_group < 1:
        raise ValueError(f"--kl_group={options.kl_group} must be at least 1")
    settings = Settings(
        options.form,
        options.max_len,
        options.too_long,
        options.ranked,
        options.kl_group,
        options.step_separator,
    )
    return Source(options.input, options.tokenizer, options.chat_template, settings)
