"""Documents into a token store: with their ids and places, the tokenizer, and the corpus's card.

A store that was made from the same content is found and left as it is; one of other content is
never replaced. The order: parts, what travels along, and store.json last, which makes it a store.
"""

import collections
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrain import files
from jaxtrain.corpus import card as card_lib
from jaxtrain.corpus.collection import Collection
from jaxtrain.corpus.inputs import storage
from jaxtrain.data import metadata
from jaxtrain.data import writer as writer_lib
from jaxtrain.data.storage import open_directory
from jaxtrain.data.store import Store
from jaxtrain.tokenizer.encode import Encoder
from jaxtrain.tokenizer.tokenizer import Tokenizer

_CARD = "card.json"


def encode(
    source: Collection, tokenizer: Tokenizer, form: Sequence[str], out: str
) -> Mapping[str, Any]:
    """Makes the store at `out` from the documents of `source`; returns its metadata.

    Args:
      form: one of DOCUMENT_FORMS.
      out: a directory or a URL.

    Raises:
      ValueError: where there is another store, no document, or a fault in encoding.
    """
    encoder = Encoder(tokenizer, form)
    tokenization = metadata.Tokenization(
        vocab_size=tokenizer.vocab_size,
        special_ids=dict(tokenizer.special_ids),
        tokenizer_sha256=tokenizer.sha256,
        settings={
            "document_form": list(form),
            "normalization": tokenizer.normalization,
        },
    )

    def write() -> Written:
        print(f"{tokenizer.kind}; encoded by {tokenizer.engine}", flush=True)
        parts, num_tokens = _write_parts(out, source, encoder, tokenization)
        print("\n".join(_verified(encoder, tokenizer)))
        for reason, count in sorted(source.num_skipped.items()):
            print(f"{count:,} records were passed by: {reason}")
        return Written(parts, {**tokenizer.files, **_card(source, tokenizer.sha256, num_tokens)})

    store = make_once(out, tokenization, list(source.sha256.values()), write)
    print(
        f"{out}: {store.num_documents:,} documents, {store.num_tokens:,} tokens, "
        f"{store.num_text_bytes / max(store.num_tokens, 1):.2f} bytes per token"
    )
    return json.loads(store.metadata.to_json())


class Written(NamedTuple):
    """What a store is made of: parts that are written, and files that travel along."""

    parts: Sequence[metadata.Part]
    companions: Mapping[str, bytes]


def make_once(
    out: str,
    tokenization: metadata.Tokenization,
    file_sha256: Sequence[str],
    write: Callable[[], Written],
) -> Store:
    """The store at `out` of the content that the hashes name; `write` is called if it is not there.

    Raises:
      ValueError: where `out` holds another store.
    """
    text_sha256 = metadata.text_sha256(file_sha256)
    directory = open_directory(out)
    if directory.read(metadata.METADATA_FILE).result().state == "missing":
        parts, companions = write()
        for name, content in companions.items():
            directory.write(name, content).result()
        writer_lib.create(out, tokenization, text_sha256, parts)
    elif reason := writer_lib.why_stale(out, tokenization, [text_sha256]):
        raise ValueError(f"{out} exists and {reason}; give another --out, or delete it")
    else:
        print(f"{out} already holds these documents; nothing to do")
    if left_over := writer_lib.orphans(out):
        print(
            f"{out}/parts: {len(left_over)} file(s) are not in {metadata.METADATA_FILE}, "
            "left by an interrupted run; delete them when no other writer is at work"
        )
    return Store(out)


def _verified(encoder: Encoder, tokenizer: Tokenizer) -> Iterator[str]:
    yield f"{encoder.num_verified:,} documents encoded again by the reference engine: the same ids"
    if encoder.num_changed:
        yield (
            f"{encoder.num_changed:,} of them do not come back from their ids as they were "
            f"({tokenizer.kind}, normalization: {tokenizer.normalization})"
        )


def _write_parts(
    out: str, source: Collection, encoder: Encoder, tokenization: metadata.Tokenization
) -> tuple[Sequence[metadata.Part], Mapping[str, int]]:
    """The parts, and the number of tokens by source."""
    documents, to_encode = itertools.tee(source.documents("encoding"))
    num_tokens: collections.Counter[str] = collections.Counter()
    with writer_lib.PartWriter(out, tokenization) as writer:
        encoded = encoder(document.text for document in to_encode)
        for document, ids in zip(documents, encoded, strict=True):
            writer.add(
                ids,
                document_id=document.id,
                source=f"{document.source} {document.metadata['origin']}",
                num_text_bytes=document.num_bytes,
            )
            num_tokens[document.source] += len(ids)
    if not writer.parts:
        raise ValueError(f"{', '.join(source.sha256)}: no documents; there is nothing to encode")
    return writer.parts, num_tokens


def _card(
    source: Collection, tokenizer_sha256: str, num_tokens: Mapping[str, int]
) -> dict[str, bytes]:
    """The card of the corpus that is encoded, the tokens counted; none where it has no card."""
    folders = [pathlib.Path(file).parent for file in source.sha256 if not storage.is_url(file)]
    near = {place / _CARD for folder in folders for place in (folder, folder.parent)}
    for path in sorted(path for path in near if path.is_file()):
        card = files.read_json(path)
        for name, output in card.get("outputs", {}).items():
            if set(source.sha256.values()) == set(output.get("files", {}).values()):
                counted = card_lib.with_token_counts(card, tokenizer_sha256, {name: num_tokens})
                return {_CARD: json.dumps(counted, indent=2, ensure_ascii=False).encode() + b"\n"}
        print(f"{path} does not describe these documents: not taken into the store")
    return {}
