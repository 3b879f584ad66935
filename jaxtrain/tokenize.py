"""Tokenizers and token stores: what a model reads instead of text.

`train` learns a vocabulary from documents, in the shares that --weight gives, and writes a folder
with a standard tokenizer.json (for SentencePiece a tokenizer.model, and in `transformers/` its form
as a tokenizer.json) and training.json beside it, which says what it was made from. `report` shows
what tokenizers make of texts, side by side. `encode` turns documents into a token store, in which
the tokenizer travels, and the corpus's card with the number of tokens added. `train` and `encode`
find their work done when that was made from the same content, wherever it lay, and never replace
what was made from another. `chat` turns conversations into a token store for fine-tuning, with a
mask of what is trained, and `answers` turns preferences into one for reward models and preference
losses; --show prints some as they will be read. `verify` reads a store whole and compares its
hashes.

Documents are read from whatever `prepare` reads: a folder that it wrote, JSON Lines, Parquet, text.

    python -m jaxtrain.tokenize train --input runs/corpus --vocab_size 4096 --out runs/tokenizer
    python -m jaxtrain.tokenize train --input en=web.parquet zh=zh.jsonl.gz code=runs/corpus \\
        --weight en=0.5 --weight zh=0.3 --weight code=0.2 --sample_bytes 1000000000 \\
        --vocab_size 32000 --out runs/tokenizer
    python -m jaxtrain.tokenize report --tokenizer runs/tokenizer path/to/model \\
        --input en=web.parquet zh=zh.jsonl.gz --out runs/report
    python -m jaxtrain.tokenize encode --input runs/corpus --tokenizer runs/tokenizer \\
        --out runs/store/train
    python -m jaxtrain.tokenize encode --input 'runs/corpus/heldout/*.parquet' \\
        --tokenizer runs/tokenizer --out runs/store/heldout
    python -m jaxtrain.tokenize chat --input chats.jsonl --tokenizer runs/pretrain \
        --chat_template chatml --max_len 2048 --out runs/store/chat --show 3
    python -m jaxtrain.tokenize answers --input pairs.jsonl --tokenizer runs/sft --max_len 2048 \
        --too_long left --out runs/store/pairs --show 3
    python -m jaxtrain.tokenize verify --store runs/store/train
"""

import argparse
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxtrain import answer_store, chat_store, files, launch, provenance, row_store, token_store
from jaxtrain.corpus import card_plots
from jaxtrain.corpus.collection import Collection
from jaxtrain.data import store as store_lib
from jaxtrain.tokenizer import report as report_lib
from jaxtrain.tokenizer import sampling, training
from jaxtrain.tokenizer.encode import DOCUMENT_FORM, DOCUMENT_FORMS
from jaxtrain.tokenizer.tokenizer import Tokenizer

TRAINING = "training.json"
_TRANSFORMERS = "transformers"
_PLOT = "bytes_per_token.svg"
_NUM_COMPARED = 200  # texts by which the form for `transformers` is compared with ours


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    result = options.run(options)
    if options.json:
        print(json.dumps(result))


def train(options: argparse.Namespace) -> Mapping[str, Any]:
    """Learns a tokenizer from a sample of --input; returns what is recorded of it."""
    wanted = training.Training(
        options.kind,
        options.vocab_size,
        options.num_reserved,
        options.pad_to_multiple,
        options.normalization,
    )
    source = Collection(options.input)
    weights = dict(options.weight) or None
    sampled = {"weights": weights, "sample_bytes": options.sample_bytes, "inputs": source.recipe}
    made_from = wanted.recipe(sampled)
    if card := _already_trained(options.out, made_from):
        print(f"{options.out} already holds this tokenizer; nothing to do")
        return card
    sample = sampling.choose(_texts(source, "sampling"), weights, options.sample_bytes)
    print("\n".join(_describe(sample)), flush=True)
    print(f"learning {wanted.num_ids:,} ids …", flush=True)
    tokenizer = wanted.train(sample.of(_texts(source, "learning")))
    card = {
        "made_from": made_from,
        "sha256": tokenizer.sha256,
        "kind": tokenizer.kind,
        "num_ids": tokenizer.vocab_size,
        "normalization": tokenizer.normalization,
        "special_ids": dict(tokenizer.special_ids),
        "sample": {
            name: {"documents": taken.num_documents, "bytes": taken.num_bytes}
            for name, taken in sample.sources.items()
        },
    }
    form = tokenizer.transformers_files
    if form != tokenizer.files:
        some = itertools.islice(sample.of(_texts(source, "comparing")), _NUM_COMPARED)
        training.check_transformers_form(tokenizer, list(some))
        for name, content in form.items():
            with files.write_whole(options.out / _TRANSFORMERS / name) as file:
                file.write(content)
    files.write_json(options.out / TRAINING, card)
    tokenizer.save(options.out)  # last: a record without a tokenizer is made good the next time
    print(f"wrote {options.out}: {tokenizer.kind}, {tokenizer.vocab_size:,} ids")
    return card


def _already_trained(out: pathlib.Path, made_from: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if out.is_file():
        raise ValueError(f"--out={out} is a file; give a folder")
    record = out / TRAINING
    card = files.read_json(record) if record.exists() else None
    if card:
        provenance.check_same(out, card["made_from"], made_from)
    try:
        found = Tokenizer.load(out) if out.is_dir() else None
    except ValueError:
        found = None
    if not found and not any(
        (out / name).exists() for name in ("tokenizer.json", "tokenizer.model")
    ):
        return None
    if not card or not found or found.sha256 != card["sha256"]:
        raise ValueError(
            f"{out} holds a tokenizer and {record} does not describe it; give another --out"
        )
    return card


def _texts(source: Collection, what: str) -> Iterator[sampling.Text]:
    return (sampling.Text(each.source, each.text) for each in source.documents(what))


def _describe(sample: sampling.Sample) -> Iterator[str]:
    total = sum(taken.num_bytes for taken in sample.sources.values())
    for name, taken in sample.sources.items():
        yield (
            f"  {name}: {taken.num_documents:,} documents, {taken.num_bytes / 1e6:,.1f} MB, "
            f"{taken.num_bytes / max(total, 1):.1%} of the sample"
            + (", all there are" if taken.is_all else "")
        )


def report(options: argparse.Namespace) -> Mapping[str, Any]:
    """Compares tokenizers on the texts of --input; returns all figures."""
    names = [path.name for path in options.tokenizer]
    tokenizers = {
        path.name if names.count(path.name) == 1 else str(path): Tokenizer.load(path)
        for path in options.tokenizer
    }
    documents = Collection(options.input).documents("reading")
    texts = (
        report_lib.Text(each.source, str(each.metadata.get("language") or ""), each.text)
        for each in documents
    )
    found = report_lib.measure(tokenizers, texts, options.d_model, options.max_bytes)
    page = report_lib.markdown(found)
    print(page)
    if options.out:
        with files.write_whole(options.out / _PLOT) as file:
            file.write(_plot(found).encode())
        with files.write_whole(options.out / "report.md") as file:
            file.write(f"{page}\n![bytes per token]({_PLOT})\n".encode())
        files.write_json(options.out / "report.json", found)
        print(f"wrote {options.out}")
    return found


def _plot(found: Mapping[str, Any]) -> str:
    colours = itertools.cycle((card_plots.KEPT, card_plots.REMOVED, card_plots.AS_READ))
    colour = dict(zip(found["tokenizers"], colours, strict=False))
    rows = []
    for group in found["texts"]:
        for name, figures in found["tokenizers"].items():
            value = figures["groups"][group]["bytes_per_token"] or 0.0
            rows.append(
                card_plots.Bar(f"{group} · {name}", [(value, colour[name])], f"{value:.2f}")
            )
    return card_plots.bars("Bytes per token", rows)


def encode(options: argparse.Namespace) -> Mapping[str, Any]:
    """Encodes the documents of --input into a token store; returns what it holds."""
    if not options.out:
        raise ValueError("--out must name a directory or a URL; it is empty")
    tokenizer = Tokenizer.load(options.tokenizer)
    return token_store.encode(Collection(options.input), tokenizer, options.form, options.out)


def chat(options: argparse.Namespace) -> Mapping[str, Any]:
    """Encodes the conversations of --input into a token store; returns what it holds."""
    return row_store.run(chat_store.from_options, options)


def answers(options: argparse.Namespace) -> Mapping[str, Any]:
    """Encodes the preferences of --input into a token store; returns what it holds."""
    return row_store.run(answer_store.from_options, options)


def verify(options: argparse.Namespace) -> Mapping[str, Any]:
    """Compares every byte of --store with its hashes; raises StoreError, naming the file."""
    store = store_lib.Store(options.store)
    if not store.verified:
        store.verify()
    print(f"{options.store}: {store.num_bytes:,} bytes are as {store_lib.METADATA_FILE} says")
    return {"num_bytes": store.num_bytes, "fingerprint": store.metadata.fingerprint}


def _weight(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=NUMBER") from None


def _form(text: str) -> tuple[str, ...]:
    form = tuple(text.split())
    if form not in DOCUMENT_FORMS:
        choices = ", ".join(repr(" ".join(each)) for each in DOCUMENT_FORMS)
        raise argparse.ArgumentTypeError(f"{text!r} must be one of {choices}")
    return form


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    commands = parser.add_subparsers(
        required=True, metavar="train|report|encode|chat|answers|verify"
    )
    add = commands.add_parser("train", help="learn a vocabulary")
    add.set_defaults(run=train)
    _add_input(add)
    add.add_argument(
        *("--weight", "-w"),
        action="append",
        default=[],
        type=_weight,
        metavar="SOURCE=X",
        help="share of a source in the text learned from; once for each source (as they are)",
    )
    add.add_argument("--sample_bytes", type=int, metavar="N", help="of text to learn from (all)")
    add.add_argument("--kind", default="bpe", choices=training.KINDS, help="(bpe)")
    add.add_argument("--vocab_size", required=True, type=int, metavar="N", help="all ids together")
    add.add_argument(
        "--num_reserved",
        type=int,
        default=0,
        metavar="N",
        help="of the ids, how many are kept without a meaning, for markers to come (0)",
    )
    add.add_argument(
        "--pad_to_multiple",
        type=int,
        default=1,
        metavar="N",
        help="further reserved ids, so that N devices can share the vocabulary (1)",
    )
    add.add_argument(
        "--normalization",
        default="identity",
        choices=training.NORMALIZATIONS,
        help="nfkc folds compatibility characters, for good (identity)",
    )
    _add_output(add, "DIR", pathlib.Path)
    add = commands.add_parser("report", help="what tokenizers make of texts")
    add.set_defaults(run=report)
    _add_input(add)
    add.add_argument("--tokenizer", required=True, nargs="+", type=pathlib.Path, metavar="PATH")
    add.add_argument("--d_model", type=int, default=1024, metavar="N", help="model width (1024)")
    add.add_argument(
        "--max_bytes", type=int, default=10_000_000, metavar="N", help="of each source (10 MB)"
    )
    add.add_argument("--out", type=pathlib.Path, metavar="DIR", help="report.md, its plot, figures")
    add.add_argument("--json", action="store_true", help="print all figures as the last line")
    add = commands.add_parser("encode", help="documents into a token store")
    add.set_defaults(run=encode)
    _add_input(add)
    add.add_argument("--tokenizer", required=True, type=pathlib.Path, metavar="PATH")
    add.add_argument(
        "--form",
        type=_form,
        default=DOCUMENT_FORM,
        metavar="FORM",
        help="what a document becomes ('bos text eos'); each token is put in once, here",
    )
    _add_output(add, "STORE", str)
    add = commands.add_parser("chat", help="conversations into a token store")
    add.set_defaults(run=chat)
    _add_input(add)
    chat_store.add_options(add)
    add = commands.add_parser("answers", help="preferences into a token store")
    add.set_defaults(run=answers)
    _add_input(add)
    answer_store.add_options(add)
    add = commands.add_parser("verify", help="whether a token store is undamaged")
    add.set_defaults(run=verify)
    add.add_argument("--store", required=True, metavar="STORE", help="a directory or a URL")
    add.add_argument("--json", action="store_true", help="print size and fingerprint as last line")
    return parser


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("--input",),
        required=True,
        nargs="+",
        metavar="[NAME=]PATH",
        help="documents; with a name, that is their source",
    )


def _add_output(parser: argparse.ArgumentParser, what: str, kind: type) -> None:
    parser.add_argument("--out", required=True, type=kind, metavar=what)
    parser.add_argument("--json", action="store_true", help="print the record as the last line")


if __name__ == "__main__":
    launch.run(main)
