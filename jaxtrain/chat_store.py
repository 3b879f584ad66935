"""Conversations into a token store: ids with a mask, or weights, of what is trained."""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxtrain import row_store
from jaxtrain.conversations import forms
from jaxtrain.conversations import ledger as ledger_lib
from jaxtrain.conversations.examples import ALL, CUTS, DROP, THINKING, TRAINED, Example, Maker
from jaxtrain.conversations.forms import BadRow, Dropped
from jaxtrain.conversations.rows import Row
from jaxtrain.row_store import Document


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides a store beside rows, tokenizer and template."""

    form: str | None = None  # a key of forms.FORMS; None: by each row's keys
    train: str = ALL
    max_len: int | None = None
    too_long: str = DROP
    thinking: str | int = THINKING[0]


@dataclasses.dataclass
class Ledger(ledger_lib.Ledger):
    """What became of the rows."""

    rewrites_history: str | None = None  # the first row of which the template does

    def lines(self) -> Iterator[str]:
        yield from super().lines()
        if self.rewrites_history:
            yield (
                "warning: the template writes earlier turns otherwise once more follow (it drops "
                f"thoughts, say), first in {self.rewrites_history}: those turns are trained as the "
                "whole conversation has them, which is not what the model saw when they were its "
                "to write. --train last trains only what agrees"
            )

    def plain(self) -> dict[str, Any]:
        return {**super().plain(), "rewrites_history": self.rewrites_history is not None}


class Source(row_store.Source[Ledger]):
    """Rows of conversations, and what makes examples of them."""

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
        self.maker = Maker(
            self.tokenizer,
            self.chat_template,
            settings.max_len,
            settings.too_long,
            settings.train,
            settings.thinking,
        )

    @property
    def deciding(self) -> Mapping[str, Any]:
        return dataclasses.asdict(self.settings)

    def new_ledger(self, max_bad_frac: float) -> Ledger:
        return Ledger(max_bad_frac)

    def documents(self, ledger: Ledger) -> Iterator[Document]:
        for row in self.rows:
            ledger.rows_in += 1
            try:
                yield Document(row, self._example(row, ledger))
            except (BadRow, Dropped) as error:
                ledger.leave_out(error, row)
                ledger.check(done=False)
        ledger.check(done=True)

    def _example(self, row: Row, ledger: Ledger) -> Example:
        conversation = forms.read(row_store.record_of(row), self.settings.form)
        example = self.maker.example(conversation)
        ledger.take([example])
        if ledger.rewrites_history is None and self.maker.rewrites_history(conversation):
            ledger.rewrites_history = row.place
        return example


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `tokenize chat`."""
    row_store.add_options(parser, "conversations")
    parser.add_argument("--form", choices=forms.FORMS, help="of the rows (by each row's keys)")
    parser.add_argument(
        "--train",
        choices=TRAINED,
        default=ALL,
        help="assistant messages: every one, or a conversation's last (all)",
    )
    parser.add_argument("--max_len", type=int, metavar="N", help="tokens of a conversation (any)")
    parser.add_argument(
        "--too_long",
        choices=CUTS,
        default=DROP,
        help="what becomes of longer ones: dropped, or cut at their right or left, by whole turns "
        "where that will do (drop)",
    )
    parser.add_argument(
        "--thinking",
        type=_thinking,
        default=THINKING[0],
        metavar="|".join((*THINKING, "N")),
        help="an assistant's thoughts: trained, read only, or trained where they have at most N "
        "tokens, other rows dropped (train)",
    )


def _thinking(text: str) -> str | int:
    if text in THINKING:
        return text
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} must be {', '.join(THINKING)} or a number of tokens"
    )


def from_options(options: argparse.Namespace) -> Source:
    """The source that a command line names."""
    settings = Settings(
        options.form, options.train, options.max_len, options.too_long, options.thinking
    )
    return Source(options.input, options.tokenizer, options.chat_template, settings)
