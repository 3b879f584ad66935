"""Tokenizers and token stores: what a model reads instead of text.

`train` learns a byte-level BPE vocabulary from documents and writes a standard tokenizer.json with
tokenizer.card.json beside it. `encode` turns documents into a token store, in which the tokenizer
travels, and the corpus's card where one lies beside the documents. Either finds its work done when
that was made from the same content, wherever it lay, and never replaces what was made from another.
`verify` reads a store whole and compares its hashes.

    python -m jaxtrain.tokenize train --input runs/corpus/train.jsonl --vocab_size 4096 \\
        --out runs/tokenizer.json
    python -m jaxtrain.tokenize encode --input runs/corpus/train.jsonl \\
        --tokenizer runs/tokenizer.json --out runs/store/train
    python -m jaxtrain.tokenize verify --store runs/store/train
"""

import argparse
import itertools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxtrain import files, launch, provenance
from jaxtrain.corpus import layout
from jaxtrain.corpus.documents import read_documents, read_documents_at
from jaxtrain.data import store as store_lib
from jaxtrain.data import writer as writer_lib
from jaxtrain.progress import show_bytes
from jaxtrain.tokenizer import bpe
from jaxtrain.tokenizer.encode import DOCUMENT_FORM, encode_texts


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    result = options.run(options)
    if options.json:
        print(json.dumps(result))


def train(options: argparse.Namespace) -> Mapping[str, Any]:
    """Learns a tokenizer from all of --input; returns its card."""
    card_file = options.out.with_suffix(".card.json")
    made_from = bpe.recipe(options.vocab_size, [files.sha256(path) for path in options.input])
    card = files.read_json(card_file) if card_file.exists() else None
    if card:
        provenance.check_same(options.out, card["made_from"], made_from)
    if options.out.exists():
        if not card or files.sha256(options.out) != card["sha256"]:
            raise ValueError(
                f"{options.out} exists and {card_file} does not describe it; give another --out"
            )
        print(f"{options.out} already holds this tokenizer; nothing to do")
        return card
    print(f"learning {options.vocab_size:,} tokens …", flush=True)
    texts = (document.text for path in options.input for document in read_documents(path))
    tokenizer = bpe.train(texts, options.vocab_size)
    card = {"made_from": made_from, "sha256": tokenizer.sha256}
    files.write_json(card_file, card)  # first: a card without its file is made good the next time
    tokenizer.save(options.out)
    print(f"wrote {options.out}")
    return card


def encode(options: argparse.Namespace) -> Mapping[str, Any]:
    """Encodes the documents of --input into a token store; returns what it holds."""
    if not options.out:
        raise ValueError("--out must name a directory or a URL; it is empty")
    tokenizer = bpe.Tokenizer.load(options.tokenizer)
    tokenization = store_lib.Tokenization(
        vocab_size=tokenizer.vocab_size,
        special_ids={name.strip("<|>"): tokenizer.control_id(name) for name in bpe.CONTROL_TOKENS},
        tokenizer_sha256=tokenizer.sha256,
        settings={"document_form": DOCUMENT_FORM},
    )
    text_sha256 = files.sha256(options.input)
    directory = store_lib.open_directory(options.out)
    if directory.read(store_lib.METADATA_FILE).result().state == "missing":
        for name, content in _companions(options.input, text_sha256, tokenizer).items():
            directory.write(name, content).result()
        parts = _write_parts(options, tokenizer, tokenization)
        writer_lib.create(options.out, tokenization, text_sha256, parts)
    elif reason := writer_lib.why_stale(options.out, tokenization, [text_sha256]):
        raise ValueError(f"{options.out} exists and {reason}; give another --out, or delete it")
    else:
        print(f"{options.out} already holds these documents; nothing to do")
    store = store_lib.Store(options.out)
    print(
        f"{options.out}: {store.num_documents:,} documents, {store.num_tokens:,} tokens, "
        f"{store.num_text_bytes / max(store.num_tokens, 1):.2f} bytes per token"
    )
    if left_over := writer_lib.orphans(options.out):
        print(
            f"{options.out}/parts: {len(left_over)} file(s) are not in {store_lib.METADATA_FILE}, "
            "left by an interrupted run; delete them when no other writer is at work"
        )
    return json.loads(store.metadata.to_json())


def verify(options: argparse.Namespace) -> Mapping[str, Any]:
    """Compares every byte of --store with its hashes; raises StoreError, naming the file."""
    store = store_lib.Store(options.store)
    if not store.verified:
        store.verify()
    print(f"{options.store}: {store.num_bytes:,} bytes are as {store_lib.METADATA_FILE} says")
    return {"num_bytes": store.num_bytes, "fingerprint": store.metadata.fingerprint}


def _write_parts(
    options: argparse.Namespace, tokenizer: bpe.Tokenizer, tokenization: store_lib.Tokenization
) -> tuple[store_lib.Part, ...]:
    documents, to_encode = itertools.tee(read_documents_at(options.input))
    texts = (document.text for _, document in to_encode)
    total = options.input.stat().st_size
    with (
        show_bytes("encoding", total) as show,
        writer_lib.PartWriter(options.out, tokenization) as writer,
    ):
        for (start, document), ids in zip(documents, encode_texts(texts, tokenizer), strict=True):
            source = f"{document.source} {options.input.name}:{start}"
            writer.add(
                ids, document_id=document.id, source=source, num_text_bytes=document.num_bytes
            )
            show(start)
    if not writer.parts:
        raise ValueError(f"{options.input} holds no documents; there is nothing to encode")
    return writer.parts


def _companions(
    documents_file: pathlib.Path, text_sha256: str, tokenizer: bpe.Tokenizer
) -> Mapping[str, bytes]:
    """Files that travel in the store: its tokenizer, and the card of the corpus that it holds."""
    companions = {"tokenizer.json": tokenizer.serialized}
    card_file = documents_file.with_name(layout.CARD)
    if card_file.exists():
        outputs = files.read_json(card_file)["outputs"].values()
        if text_sha256 in [output["sha256"] for output in outputs]:
            companions[layout.CARD] = card_file.read_bytes()
        else:
            print(f"{card_file} does not describe {documents_file}: not taken into the store")
    return companions


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    commands = parser.add_subparsers(required=True, metavar="train|encode|verify")
    add = commands.add_parser("train", help="learn a vocabulary")
    add.set_defaults(run=train)
    add.add_argument("--input", required=True, nargs="+", type=pathlib.Path, metavar="FILE.jsonl")
    add.add_argument("--vocab_size", required=True, type=int, metavar="N", help="all ids together")
    add.add_argument("--out", required=True, type=pathlib.Path, metavar="TOKENIZER.json")
    add.add_argument("--json", action="store_true", help="print the card as the last line")
    add = commands.add_parser("encode", help="documents into a token store")
    add.set_defaults(run=encode)
    add.add_argument("--input", required=True, type=pathlib.Path, metavar="FILE.jsonl")
    add.add_argument("--tokenizer", required=True, type=pathlib.Path, metavar="TOKENIZER.json")
    add.add_argument("--out", required=True, metavar="STORE", help="a directory or a URL")
    add.add_argument("--json", action="store_true", help="print the store's metadata as last line")
    add = commands.add_parser("verify", help="whether a token store is undamaged")
    add.set_defaults(run=verify)
    add.add_argument("--store", required=True, metavar="STORE", help="a directory or a URL")
    add.add_argument("--json", action="store_true", help="print size and fingerprint as last line")
    return parser


if __name__ == "__main__":
    launch.run(main)
