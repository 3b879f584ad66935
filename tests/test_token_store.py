import json
import pathlib

import numpy as np
import pytest

from jaxtrain import files, token_store
from jaxtrain.corpus.collection import Collection
from jaxtrain.corpus.documents import Document, write_documents
from jaxtrain.data.store import Store
from jaxtrain.tokenizer import bpe
from jaxtrain.tokenizer.encode import DOCUMENT_FORM
from jaxtrain.tokenizer.tokenizer import Tokenizer

TEXTS = {"web": ["the red fox runs\n" * 3, "up\u2028down <|eos|> "], "wiki": ["  日本語 café 👩‍🚀"]}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bpe.train([text for texts in TEXTS.values() for text in texts], 265)


@pytest.fixture
def inputs(tmp_path):
    """Two files with three documents."""
    for source, texts in TEXTS.items():
        documents = [Document(f"{source}-{i}", text, source, {}) for i, text in enumerate(texts)]
        write_documents(tmp_path / "corpus" / "train" / f"{source}.jsonl", documents)
    return sorted(map(str, (tmp_path / "corpus" / "train").glob("*.jsonl")))


@pytest.fixture
def encode(inputs, tokenizer, tmp_path, capsys):
    def start(given=None, form=DOCUMENT_FORM):
        out = str(tmp_path / "store")
        token_store.encode(Collection(given or inputs), tokenizer, form, out)
        return Store(out), capsys.readouterr().out

    return start


def _documents(store: Store) -> list[np.ndarray]:
    ids = np.empty(store.num_tokens, store.dtype)
    store.read(*(np.array([n], np.int64) for n in (0, store.num_tokens, 0)), ids)
    return np.split(ids, store.document_ends[:-1])


def test_store_holds_every_document_between_bos_and_eos(encode, tokenizer):
    store, out = encode()
    bos, eos = tokenizer.special_ids["bos"], tokenizer.special_ids["eos"]
    documents = _documents(store)
    texts = [text for texts in TEXTS.values() for text in texts]
    assert [tokenizer.decode(ids[1:-1]) for ids in documents] == texts
    assert all(ids[0] == bos and ids[-1] == eos for ids in documents)
    assert all(eos not in ids[:-1] for ids in documents)
    assert store.num_text_bytes == sum(len(text.encode()) for text in texts)
    assert "encoded by tiktoken" in out
    assert "3 documents encoded again by the reference engine: the same ids" in out


def test_every_document_leads_back_to_its_file_and_line(encode, inputs):
    store, _ = encode()
    contents = {path.rpartition("/")[2]: pathlib.Path(path).read_bytes() for path in inputs}
    names = [store.document_name(number) for number in range(3)]
    assert [identity for identity, _ in names] == ["web-0", "web-1", "wiki-0"]
    for identity, place in names:
        source, _, origin = place.partition(" ")
        file, _, offset = origin.rpartition(":")
        line = contents[file][int(offset) :].partition(b"\n")[0]
        assert json.loads(line)["id"] == identity
        assert identity.startswith(source)


def test_tokenizer_travels_in_the_store(encode, tokenizer, tmp_path):
    store, _ = encode()
    loaded = Tokenizer.load(tmp_path / "store")
    assert store.tokenization.tokenizer_sha256 == loaded.sha256 == tokenizer.sha256
    assert loaded.special_ids == tokenizer.special_ids == store.tokenization.special_ids


@pytest.fixture
def card(inputs, tmp_path):
    hashes = {path.rpartition("/")[2]: files.sha256(path) for path in inputs}
    card = {"summary": "x", "outputs": {"train": {"files": hashes}, "heldout": {"files": {}}}}
    files.write_json(tmp_path / "corpus" / "card.json", card)
    return card


def test_card_of_the_corpus_travels_with_the_tokens_counted(encode, card, tokenizer, tmp_path):
    store, _ = encode()
    found = files.read_json(tmp_path / "store" / "card.json")
    counted = found.pop("tokens")
    assert found == card
    by_source = {
        source: sum(len(tokenizer.encode(text)) + 2 for text in texts)
        for source, texts in TEXTS.items()
    }
    assert counted == {
        tokenizer.sha256: {"train": {"total": store.num_tokens, "sources": by_source}}
    }


def test_card_of_other_documents_does_not_travel_and_that_is_said(encode, card, inputs, tmp_path):
    _, out = encode(inputs[:1])
    assert "card.json does not describe these documents: not taken into the store" in out
    assert not (tmp_path / "store" / "card.json").exists()


def test_parts_left_by_an_interrupted_run_are_told_and_kept(encode, tmp_path):
    left = tmp_path / "store" / "parts" / "0123456789abcdef.tokens"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"cut")
    assert "store/parts: 1 file(s) are not in store.json" in encode()[1]
    assert left.exists()


def test_malformed_line_leaves_no_store(encode, inputs, tmp_path):
    with open(inputs[1], "ab") as file:
        file.write(b'{"text": "cut')
    with pytest.raises(ValueError, match=r"wiki\.jsonl:2: not JSON"):
        encode()
    assert not (tmp_path / "store" / "store.json").exists()


def test_empty_documents_are_passed_by_and_counted(encode, inputs):
    with open(inputs[1], "ab") as file:
        file.write(b'{"text": ""}\n')
    store, out = encode()
    assert store.num_documents == 3
    assert "1 records were passed by: empty" in out


def test_files_without_documents_are_an_error(encode, tmp_path):
    (tmp_path / "none.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match=r"none\.jsonl: no documents; there is nothing to encode"):
        encode([str(tmp_path / "none.jsonl")])
    assert not (tmp_path / "store" / "store.json").exists()


@pytest.mark.shared
def test_separators_of_unicode_do_not_split_documents(encode, shared_dir, tokenizer):
    """CLN-13"""
    store, _ = encode([str(shared_dir / "cases/inputs/CLN-13.jsonl")])
    assert [store.document_name(number)[0] for number in range(3)] == ["0", "1", "2"]
    first = tokenizer.decode(_documents(store)[0][1:-1])
    assert len(first) == 12
    assert "\u2028" in first
