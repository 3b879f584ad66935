"""Conversations into a token store: ids with a mask of what is trained, and a ledger of every row.

    rows in = documents out + dropped, by reason

The store is known by its content: the rows' bytes, tokenizer, template and settings, never a path.
The tokenizer and the template travel in it, from there into a run's workdir and its export.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from jaxtrain import token_store
from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.source import TEMPLATE_FILE, chat_template, teach, template_source
from jaxtrain.conversations import forms, show
from jaxtrain.conversations.examples import ALL, DROP, Dropped, Example, Maker
from jaxtrain.conversations.rows import Row, RowFiles
from jaxtrain.data.store import TAUGHT_FROM, Store, Tokenization
from jaxtrain.data.writer import PartWriter
from jaxtrain.progress import show_bytes
from jaxtrain.tokenizer.tokenizer import Tokenizer

LEDGER: Final = "ledger.json"
MALFORMED: Final = "malformed"
_ENOUGH_TO_JUDGE = 1000  # rows, before a share of bad ones stops a pass half-way


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides a store beside rows, tokenizer and template."""

    form: str | None = None  # a key of forms.FORMS; None: by each row's keys
    train: str = ALL
    max_len: int | None = None
    too_long: str = DROP


@dataclasses.dataclass
class Ledger:
    """What became of the rows."""

    max_bad_frac: float
    rows_in: int = 0
    rows_out: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    cut: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    bad: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    dropped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    first: dict[str, str] = dataclasses.field(default_factory=dict)  # reason → the first such row
    rewrites_history: str | None = None  # the first row of which the template does

    def take(self, example: Example) -> None:
        self.rows_out += 1
        self.tokens += len(example.ids)
        self.trained_tokens += int(example.mask.sum())
        if example.cut:
            self.cut[example.cut] += 1

    def leave_out(self, error: forms.BadRow | Dropped, row: Row) -> None:
        (self.bad if isinstance(error, forms.BadRow) else self.dropped)[error.reason] += 1
        self.first.setdefault(error.reason, f"{row.place}: {error}")

    def check(self, *, done: bool) -> None:
        """Raises a ValueError where too large a share of the rows is bad, or a row is lost."""
        num_bad = self.bad.total()
        enough = done or self.rows_in >= _ENOUGH_TO_JUDGE
        if enough and num_bad > self.max_bad_frac * self.rows_in:
            reason = self.bad.most_common(1)[0][0]
            raise ValueError(
                f"{num_bad:,} of {self.rows_in:,} rows are no conversations, more than "
                f"--max_bad_frac={self.max_bad_frac}; {reason}, first {self.first[reason]}. Mend "
                "them, or raise it"
            )
        if not done:
            return
        if not self.rows_out:
            reasons = ", ".join(self._reasons()) or "there are no rows"
            raise ValueError(f"nothing is left to train on, of {self.rows_in:,} rows: {reasons}")
        assert self.rows_in == self.rows_out + num_bad + self.dropped.total(), self

    def lines(self) -> Iterator[str]:
        """For people."""
        left_out = self.bad.total() + self.dropped.total()
        yield f"{self.rows_in:,} rows in = {self.rows_out:,} out + {left_out:,} dropped"
        yield from (f"  dropped: {line}" for line in self._reasons())
        for what, count in sorted(self.cut.items()):
            yield f"  too long, cut by {what}: {count:,}"
        frac = self.trained_tokens / max(self.tokens, 1)
        yield f"{self.trained_tokens:,} of {self.tokens:,} tokens trained ({frac:.1%})"
        if self.rewrites_history:
            yield (
                "warning: the template writes earlier turns otherwise once more follow (it drops "
                f"thoughts, say), first in {self.rewrites_history}: those turns are trained as the "
                "whole conversation has them, which is not what the model saw when they were its "
                "to write. --train last trains only what agrees"
            )

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "dropped": dict(sorted((self.bad + self.dropped).items())),
            "first": {reason: self.first[reason] for reason in sorted(self.first)},
            "cut": dict(sorted(self.cut.items())),
            "tokens": self.tokens,
            "trained_tokens": self.trained_tokens,
            "rewrites_history": self.rewrites_history is not None,
        }

    def _reasons(self) -> Iterator[str]:
        for reason, count in (self.bad + self.dropped).most_common():
            yield f"{count:,} {reason}, first {self.first[reason]}"


class Source:
    """Rows, and what makes examples of them."""

    def __init__(
        self,
        given: Sequence[str],
        tokenizer: pathlib.Path,
        template: str | None,
        settings: Settings,
    ) -> None:
        """Args:
          tokenizer: its directory, such as a workdir's or a Hugging Face model's.
          template: a built-in one, or a file; None: the one beside the tokenizer.

        Raises:
          ValueError: where one of them is not there, or they do not fit together.
        """
        self.rows = RowFiles(given)
        self.settings = settings
        base = Tokenizer.load(tokenizer)
        self.tokenizer, self.template = _taught(base, tokenizer, template)
        self.is_taught = self.tokenizer.sha256 != base.sha256
        self._base_sha256 = base.sha256
        self.maker = Maker(
            self.tokenizer,
            None if self.template is None else chat_template(self.template, self.tokenizer),
            settings.max_len,
            settings.too_long,
            settings.train,
        )

    @functools.cached_property
    def tokenization(self) -> Tokenization:
        """What the store is known by, beside the rows."""
        template = None if self.template is None else self.template.encode()
        settings = {
            "chat_template_sha256": template and hashlib.sha256(template).hexdigest(),
            "normalization": self.tokenizer.normalization,
            **dataclasses.asdict(self.settings),
        }
        if self.is_taught:
            settings[TAUGHT_FROM] = self._base_sha256
        return Tokenization(
            vocab_size=self.tokenizer.vocab_size,
            special_ids=dict(self.tokenizer.special_ids),
            tokenizer_sha256=self.tokenizer.sha256,
            settings=settings,
        )

    def examples(self, ledger: Ledger) -> Iterator[tuple[Row, Example]]:
        """The examples of all rows in order; the ledger counts every row.

        Raises:
          ValueError: where too large a share of the rows is bad, or nothing is left.
        """
        for row in self.rows:
            ledger.rows_in += 1
            try:
                yield row, self._example(row, ledger)
            except (forms.BadRow, Dropped) as error:
                ledger.leave_out(error, row)
                ledger.check(done=False)
        ledger.check(done=True)

    def _example(self, row: Row, ledger: Ledger) -> Example:
        if row.record is None:
            raise forms.BadRow(MALFORMED, row.fault)
        conversation = forms.read(row.record, self.settings.form)
        example = self.maker.example(conversation)
        ledger.take(example)
        if ledger.rewrites_history is None and self.maker.rewrites_history(conversation):
            ledger.rewrites_history = row.place
        return example


def _taught(
    base: Tokenizer, directory: pathlib.Path, template: str | None
) -> tuple[Tokenizer, str | None]:
    """The tokenizer with the template's control tokens, and the template's source.

    Raises:
      ValueError: where the vocabulary would have to grow, which the model's does not.
    """
    if template is None:
        folder = directory if directory.is_dir() else directory.parent
        return base, template_source(folder)
    if template not in BUILTIN:
        if not pathlib.Path(template).is_file():
            raise ValueError(
                f"--chat_template={template} must be a file, or one of {', '.join(BUILTIN)}"
            )
        return base, pathlib.Path(template).read_text(encoding="utf-8")
    tokenizer, source = teach(base, template)
    if tokenizer.vocab_size != base.vocab_size:
        tokens = BUILTIN[template].control_tokens
        known = {base.token(number) for number in base.special_token_ids}
        missing = [token for token in tokens if token not in known]
        raise ValueError(
            f"--chat_template={template} needs the control tokens {', '.join(missing)}, and "
            f"{directory} has {len(base.reserved_ids)} reserved ids for {len(missing)}; the "
            "model's vocabulary must have room for them: import it with "
            f"{' '.join(f'--add_token={token!r}' for token in missing)} (jaxtrain.import_hf), or "
            f"train the tokenizer with --num_reserved={len(missing)} (jaxtrain.tokenize train)"
        )
    return tokenizer, source


def show_examples(source: Source, count: int, max_bad_frac: float) -> None:
    """Prints the first `count` examples and what was wrong with rows before them."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(show.legend())
    ledger = Ledger(max_bad_frac)
    for row, example in source.examples(ledger):
        console.print(show.shown(example, source.tokenizer, row.place))
        if ledger.rows_out == count:
            break
    for line in ledger.first.values():
        print(f"dropped: {line}")


def encode(source: Source, max_bad_frac: float, out: str) -> Mapping[str, Any]:
    """Makes the store at `out`; returns its metadata, the ledger with it.

    Raises:
      ValueError: where there is another store, too many rows are bad, or nothing is left.
    """
    ledger = Ledger(max_bad_frac)

    def write() -> token_store.Written:
        parts = _write_parts(source, ledger, out)
        companions = {
            **source.tokenizer.files,
            LEDGER: json.dumps(ledger.plain(), indent=2, ensure_ascii=False).encode() + b"\n",
        }
        if source.template is not None:
            companions[TEMPLATE_FILE] = source.template.encode()
        print("\n".join(ledger.lines()))
        return token_store.Written(parts, companions)

    store = token_store.make_once(out, source.tokenization, source.rows.sha256(), write)
    print(f"{out}: {store.num_documents:,} documents, {store.num_tokens:,} tokens")
    return {**json.loads(store.metadata.to_json()), "ledger": read_ledger(store)}


def read_ledger(store: Store) -> Mapping[str, Any]:
    """What became of the rows that a store was made of; {} where it holds other documents."""
    return json.loads(store.companion(LEDGER) or b"{}")


def _write_parts(source: Source, ledger: Ledger, out: str) -> Sequence[Any]:
    done = 0
    with (
        PartWriter(out, source.tokenization) as writer,
        show_bytes("rendering", source.rows.num_bytes) as show_done,
    ):
        for row, example in source.examples(ledger):
            identity = (row.record or {}).get("id")
            writer.add(
                example.ids,
                document_id=row.place if identity is None else str(identity),
                source=row.place,
                num_text_bytes=example.num_text_bytes,
                mask=example.mask,
            )
            done += example.num_text_bytes
            show_done(min(done, source.rows.num_bytes))
    return writer.parts
