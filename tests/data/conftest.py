"""Small token stores for the tests of `data/`."""

import dataclasses
import itertools

import numpy as np
import pytest

from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.metadata import Tokenization
from jaxtrain.data.writer import PartWriter, create


@pytest.fixture(scope="session")
def tokenization():
    return Tokenization(
        vocab_size=300,
        special_ids={"bos": 256, "eos": 257, "mask": 258},
        tokenizer_sha256="a" * 64,
        settings={"adds_eos": True},
    )


@pytest.fixture(scope="session")
def write_store(tokenization):
    """Writes a store of documents (lists of ids) at a path; a token counts as two bytes of text."""

    def write(
        path,
        documents,
        tokenization=tokenization,
        part_tokens=1 << 20,
        text_sha256="t" * 64,
        masks=None,
        extras=None,  # per document: further arguments of PartWriter.add
    ):
        with PartWriter(str(path), tokenization, part_tokens) as writer:
            for number, ids in enumerate(documents):
                writer.add(
                    ids,
                    document_id=f"doc-{number}",
                    source=f"file.jsonl:{number}",
                    num_text_bytes=2 * len(ids),
                    **({} if masks is None else {"mask": np.array(masks[number], bool)}),
                    **({} if extras is None else extras[number]),
                )
        create(str(path), tokenization, text_sha256, writer.parts)
        return str(path)

    return write


@pytest.fixture(scope="session")
def write_answers(write_store, tokenization):
    """Writes a store of answers at a path from its groups: lists of {"ids": …, "value": …}."""

    def write(path, kind, groups, **settings):
        documents = [dict(document) for group in groups for document in group]
        joins = [number > 0 for group in groups for number in range(len(group))]
        return write_store(
            path,
            [document.pop("ids") for document in documents],
            tokenization=dataclasses.replace(
                tokenization, settings={**tokenization.settings, "answers": kind}
            ),
            extras=[
                document | {"joins": joined}
                for document, joined in zip(documents, joins, strict=True)
            ],
            **settings,
        )

    return write


@pytest.fixture
def make_store(tmp_path_factory, write_store):
    """Writes a store of documents below a new directory and returns its path."""

    def make(documents, **settings):
        return write_store(tmp_path_factory.mktemp("store"), documents, **settings)

    return make


@pytest.fixture
def make_config(make_store):
    """A `DataConfig` whose sources are given as documents, or as ready `SourceConfig`s."""

    def make(sources, **settings):
        return DataConfig(
            sources={
                name: given if isinstance(given, SourceConfig) else SourceConfig(make_store(given))
                for name, given in sources.items()
            },
            **settings,
        )

    return make


@pytest.fixture(scope="session")
def numbered_documents():
    """Documents of given lengths whose tokens are all different: first, first + 1, …"""

    def make(lengths, first=0):
        ends = itertools.accumulate(lengths, initial=first)
        return [list(range(a, b)) for a, b in itertools.pairwise(ends)]

    return make
