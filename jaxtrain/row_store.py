"""Rows through a chat template into a token store, with a ledger of every row.

    rows in = rows out + dropped, by reason

What a row must be, and which documents it becomes, is said by `chat_store.py` and
`answer_store.py`. The store is known by its content: the rows' bytes, tokenizer, template and
settings, never a path. The tokenizer and the template travel in it, from there into a run's workdir
and its export.
"""

import abc
import argparse
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
from rich.console import Console

from jaxtrain import token_store
from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.source import (
    TEMPLATE_FILE,
    chat_template,
    teach,
    template_source,
    template_text,
)
from jaxtrain.chat.template import ChatTemplate
from jaxtrain.conversations import show
from jaxtrain.conversations.examples import DROP, Example
from jaxtrain.conversations.forms import BadRow
from jaxtrain.conversations.ledger import Ledger
from jaxtrain.conversations.rows import Row, RowFiles
from jaxtrain.data.metadata import TAUGHT_FROM, Tokenization
from jaxtrain.data.store import Store
from jaxtrain.data.writer import PartWriter
from jaxtrain.progress import show_bytes
from jaxtrain.tokenizer.tokenizer import Tokenizer

LEDGER: Final = "ledger.json"
MALFORMED: Final = "malformed"


class Document(NamedTuple):
    """One document of a store, and the row that it came from."""

    row: Row
    example: Example
    value: float | None = None  # what is known of it as an answer
    joins: bool = False  # stands in one row of a batch with the document before it
    labels: np.ndarray | None = None  # uint8 for each token


LedgerT = TypeVar("LedgerT", bound=Ledger)


class Source(abc.ABC, Generic[LedgerT]):
    """Rows, and what makes documents of them."""

    def __init__(self, given: Sequence[str], tokenizer: pathlib.Path, template: str | None) -> None:
        """Args:
          tokenizer: its directory, such as a workdir's or a Hugging Face model's.
          template: a built-in one, or a file; None: the one beside the tokenizer.

        Raises:
          ValueError: where one of them is not there, or they do not fit together.
        """
        self.rows = RowFiles(given)
        base = Tokenizer.load(tokenizer)
        self.tokenizer, self.template = _taught(base, tokenizer, template)
        self._base_sha256 = base.sha256

    @property
    def is_taught(self) -> bool:
        """Whether the tokenizer was given the template's control tokens."""
        return self.tokenizer.sha256 != self._base_sha256

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The template, with what the tokenizer says of its variables."""
        return None if self.template is None else chat_template(self.template, self.tokenizer)

    @property
    @abc.abstractmethod
    def deciding(self) -> Mapping[str, Any]:
        """What decides the store beside rows, tokenizer and template, as JSON values."""

    @abc.abstractmethod
    def new_ledger(self, max_bad_frac: float) -> LedgerT:
        """A ledger for one pass over the rows."""

    @abc.abstractmethod
    def documents(self, ledger: LedgerT) -> Iterator[Document]:
        """The documents of all rows in order; the ledger counts every row.

        Raises:
          ValueError: where too large a share of the rows is bad, or nothing is left.
        """

    def known_of(self, group: Sequence[Document]) -> Sequence[str]:
        """What is known of each document of a group, for people; empty where nothing is."""
        return [""] * len(group)

    @functools.cached_property
    def tokenization(self) -> Tokenization:
        """What the store is known by, beside the rows."""
        template = None if self.template is None else self.template.encode()
        settings = {
            "chat_template_sha256": template and hashlib.sha256(template).hexdigest(),
            "normalization": self.tokenizer.normalization,
            **self.deciding,
        }
        if self.is_taught:
            settings[TAUGHT_FROM] = self._base_sha256
        return Tokenization(
            vocab_size=self.tokenizer.vocab_size,
            special_ids=dict(self.tokenizer.special_ids),
            tokenizer_sha256=self.tokenizer.sha256,
            settings=settings,
        )


def add_options(parser: argparse.ArgumentParser, what: str) -> None:
    """The command line's options that all such stores have; `what` the rows are to be."""
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, metavar="PATH")
    parser.add_argument(
        "--chat_template",
        metavar="NAME",
        help=f"{', '.join(BUILTIN)}, or a file (the one beside the tokenizer)",
    )
    parser.add_argument(
        "--max_bad_frac",
        type=float,
        default=0.01,
        metavar="X",
        help=f"share of rows that are no {what}, above which nothing is made (0.01)",
    )
    parser.add_argument("--show", type=int, metavar="N", help="print the first N as they are read")
    parser.add_argument("--out", metavar="STORE")
    parser.add_argument("--json", action="store_true", help="print the record as the last line")


def run(
    source_of: Callable[[argparse.Namespace], Source[Any]], options: argparse.Namespace
) -> Mapping[str, Any]:
    """Shows rows, makes the store, or both; returns what it holds.

    Raises:
      ValueError: where neither is asked for, or the store cannot be made.
    """
    if not options.out and not options.show:
        raise ValueError("give --out, where the store goes, or --show, to look at rows first")
    if options.show is not None and options.show < 1:
        raise ValueError(f"--show={options.show} must be at least 1, or be left out")
    if options.max_len is not None and options.max_len < 1:
        raise ValueError(f"--max_len={options.max_len} must be at least 1")
    if not 0 <= options.max_bad_frac <= 1:
        raise ValueError(f"--max_bad_frac={options.max_bad_frac} must be from 0 to 1")
    if options.too_long != DROP and options.max_len is None:
        raise ValueError(f"--too_long={options.too_long} cuts at --max_len; give it")
    source = source_of(options)
    if options.show:
        show_documents(source, options.show, options.max_bad_frac)
    return encode(source, options.max_bad_frac, options.out) if options.out else {}


def record_of(row: Row) -> Mapping[str, Any]:
    """A row's record.

    Raises:
      BadRow: where it is malformed.
    """
    if row.record is None:
        raise BadRow(MALFORMED, row.fault)
    return row.record


def show_documents(source: Source[Any], count: int, max_bad_frac: float) -> None:
    """Prints the first `count` groups of documents, and what was wrong with rows before them."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(show.legend())
    ledger = source.new_ledger(max_bad_frac)
    group: list[Document] = []
    for document in source.documents(ledger):
        if group and not document.joins:
            _print_group(console, group, source)
            group, count = [], count - 1
            if not count:
                break
        group.append(document)
    if group:
        _print_group(console, group, source)
    for line in ledger.first.values():
        print(f"dropped: {line}")


def _print_group(console: Console, group: Sequence[Document], source: Source[Any]) -> None:
    answers = [
        show.Shown(document.example, f"{known}{document.row.place}", document.labels)
        for document, known in zip(group, source.known_of(group), strict=True)
    ]
    console.print(show.shown_group(answers, source.tokenizer))


def encode(source: Source[Any], max_bad_frac: float, out: str) -> Mapping[str, Any]:
    """Makes the store at `out`; returns its metadata, the ledger with it.

    Raises:
      ValueError: where there is another store, too many rows are bad, or nothing is left.
    """
    ledger = source.new_ledger(max_bad_frac)

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


def _write_parts(source: Source[Any], ledger: Ledger, out: str) -> Sequence[Any]:
    done = 0
    with (
        PartWriter(out, source.tokenization) as writer,
        show_bytes("rendering", source.rows.num_bytes) as show_done,
    ):
        for row, example, value, joins, labels in source.documents(ledger):
            identity = (row.record or {}).get("id")
            writer.add(
                example.ids,
                document_id=row.place if identity is None else str(identity),
                source=row.place,
                num_text_bytes=example.num_text_bytes,
                mask=example.mask if example.weights is None else None,
                weights=example.weights,
                value=value,
                joins=joins,
                labels=labels,
            )
            done += example.num_text_bytes
            show_done(min(done, source.rows.num_bytes))
    return writer.parts


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
        return base, template_text(pathlib.Path(template))
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
