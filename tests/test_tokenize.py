import json
import os
import subprocess
import sys

import numpy as np
import pytest

from jaxtrain import files, tokenize
from jaxtrain.corpus.documents import Document, read_documents_at, write_documents
from jaxtrain.data.store import Store
from jaxtrain.tokenizer import bpe

TEXTS = ["the red fox runs by the old oak\n" * 3, "up\u2028down <|eos|> ", "", "  日本語 café 👩‍🚀"]
VOCAB_SIZE = 270


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus" / "train.jsonl"
    write_documents(path, [Document(f"d{i}", text, "web", {}) for i, text in enumerate(TEXTS)])
    return path


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command in the test's folder and returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def start(*arguments):
        monkeypatch.setattr(sys, "argv", ["tokenize", *map(str, arguments)])
        capsys.readouterr()
        tokenize.main()
        return capsys.readouterr().out

    return start


@pytest.fixture
def train(run, corpus):
    def start(*arguments, out="tokenizer.json", vocab_size=VOCAB_SIZE, files_in=(corpus,)):
        size = ("--vocab_size", vocab_size)
        return run("train", "--input", *files_in, *size, "--out", out, *arguments)

    return start


@pytest.fixture
def encode(run, corpus):
    def start(*arguments, out="store", tokenizer="tokenizer.json"):
        given = ("--input", corpus, "--tokenizer", tokenizer, "--out", out)
        return run("encode", *given, *arguments)

    return start


def _documents(store: Store) -> list[np.ndarray]:
    ids = np.empty(store.num_tokens, store.dtype)
    store.read(*(np.array([n], np.int64) for n in (0, store.num_tokens, 0)), ids)
    return np.split(ids, store.document_ends[:-1])


def test_store_holds_every_document_between_bos_and_eos(train, encode, tmp_path):
    train()
    encode()
    tokenizer = bpe.Tokenizer.load(tmp_path / "tokenizer.json")
    bos, eos = tokenizer.control_id(bpe.BOS), tokenizer.control_id(bpe.EOS)
    documents = _documents(Store("store"))
    assert [tokenizer.decode(ids[1:-1]) for ids in documents] == TEXTS
    assert all(ids[0] == bos and ids[-1] == eos for ids in documents)
    assert all(eos not in ids[:-1] for ids in documents)
    assert Store("store").num_text_bytes == sum(len(text.encode()) for text in TEXTS)


def test_every_document_leads_back_to_its_line(train, encode, corpus):
    train()
    encode()
    names = [Store("store").document_name(i) for i in range(len(TEXTS))]
    expected = [(d.id, f"{d.source} train.jsonl:{at}") for at, d in read_documents_at(corpus)]
    assert names == expected
    lines = corpus.read_bytes()
    for document_id, source in names:
        start = int(source.rpartition(":")[2])
        assert json.loads(lines[start:].partition(b"\n")[0])["id"] == document_id


def test_same_content_is_found_done_under_another_name_and_in_another_place(
    train, encode, run, corpus, tmp_path, monkeypatch
):
    """LDR-14: everything moved and renamed, run from another directory."""
    train()
    encode()
    metadata, fingerprint = files.sha256("store/store.json"), Store("store").metadata.fingerprint
    assert "already holds this tokenizer" in train()
    assert "already holds these documents" in encode()
    assert files.sha256("store/store.json") == metadata

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("tokenizer.json", "tokenizer.card.json", "store"):
        os.rename(name, elsewhere / name)
    os.rename(corpus, elsewhere / "renamed.jsonl")
    monkeypatch.chdir("/")
    out = run(
        *("encode", "--input", elsewhere / "renamed.jsonl", "--out", elsewhere / "store"),
        *("--tokenizer", elsewhere / "tokenizer.json"),
    )
    assert "already holds these documents" in out
    assert Store(str(elsewhere / "store")).metadata.fingerprint == fingerprint


@pytest.mark.parametrize("change", ["text", "tokenizer"])
def test_store_of_other_content_is_never_reused_and_stays_as_it_was(train, encode, corpus, change):
    """LDR-13: one byte of the text, or a tokenizer of the same name."""
    train()
    encode()
    before = files.sha256("store/store.json")
    if change == "text":
        corpus.write_bytes(corpus.read_bytes().replace(b"old oak", b"odd oak", 1))
        reason = "the text has changed"
    else:  # another content under the same path
        os.remove("tokenizer.json")
        os.remove("tokenizer.card.json")
        train(vocab_size=VOCAB_SIZE + 1)
        reason = "it was made with another tokenizer"
    with pytest.raises(ValueError, match=f"store exists and {reason}; give another --out"):
        encode()
    assert files.sha256("store/store.json") == before
    encode(out="another")
    assert Store("another").metadata.fingerprint != Store("store").metadata.fingerprint


def test_tokenizer_of_other_settings_or_text_is_refused_with_the_difference(train, corpus):
    train()
    with pytest.raises(ValueError, match=r"tokenizer\.json exists .*vocab_size: 270 -> 271"):
        train(vocab_size=VOCAB_SIZE + 1)
    corpus.write_bytes(corpus.read_bytes().replace(b"old oak", b"odd oak", 1))
    with pytest.raises(ValueError, match=r"tokenizer\.json exists .*input_sha256"):
        train()


def test_tokenizer_edited_by_hand_is_not_taken_for_the_trained_one(train, tmp_path):
    train()
    path = tmp_path / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(ValueError, match=r"tokenizer\.card\.json does not describe it"):
        train()


def test_tokenizer_that_someone_else_put_there_is_not_replaced(train, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.card\.json does not describe it"):
        train()
    assert (tmp_path / "tokenizer.json").read_text() == "{}"


def test_training_cut_short_after_the_card_is_made_good(train, tmp_path):
    train()
    trained = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").unlink()
    train()
    assert (tmp_path / "tokenizer.json").read_bytes() == trained


def test_several_inputs_in_any_order_are_one_recipe(train, corpus, tmp_path):
    more = tmp_path / "more.jsonl"
    write_documents(more, [Document("m", "an owl in the old oak", "web", {})])
    train(files_in=(corpus, more))
    assert "already holds" in train(files_in=(more, corpus))


def test_tokenizer_and_card_travel_in_the_store(train, encode, corpus, tmp_path):
    train()
    card = {"outputs": {"train": {"sha256": files.sha256(corpus)}}}
    files.write_json(corpus.parent / "card.json", card)
    encode()
    assert files.sha256("store/tokenizer.json") == Store("store").tokenization.tokenizer_sha256
    assert files.read_json("store/card.json") == card


def test_card_of_other_documents_does_not_travel_and_that_is_said(train, encode, corpus, tmp_path):
    train()
    files.write_json(corpus.parent / "card.json", {"outputs": {"train": {"sha256": "other"}}})
    assert "does not describe" in encode()
    assert not (tmp_path / "store" / "card.json").exists()


def test_parts_left_by_an_interrupted_run_are_told_and_kept(train, encode, tmp_path):
    train()
    left = tmp_path / "store" / "parts" / "0123456789abcdef.tokens"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"cut")
    assert "store/parts: 1 file(s) are not in store.json" in encode()
    assert left.exists()


def test_verify_tells_a_whole_store_from_a_damaged_one(train, encode, run, tmp_path, monkeypatch):
    train()
    assert "not in store.json" not in encode()
    size = sum(file.stat().st_size for file in (tmp_path / "store" / "parts").iterdir())
    expected = f"store: {size:,} bytes are as store.json says\n"
    assert run("verify", "--store", "store") == expected
    monkeypatch.setattr("jaxtrain.data.store.VERIFIED_BYTES", 0)
    assert run("verify", "--store", "store") == expected
    (file,) = (tmp_path / "store" / "parts").glob("*.tokens")
    file.write_bytes(b"\xff" + file.read_bytes()[1:])
    with pytest.raises(ValueError, match=f"{file.name}: its content has changed"):
        run("verify", "--store", "store")


def test_malformed_line_leaves_no_store(train, encode, corpus, tmp_path):
    train()
    corpus.write_bytes(corpus.read_bytes() + b'{"text": "cut')
    with pytest.raises(ValueError, match=r"train\.jsonl:5: not JSON"):
        encode()
    assert not (tmp_path / "store" / "store.json").exists()


def test_file_without_documents_is_an_error(train, encode, corpus, tmp_path):
    train()
    corpus.write_text("\n\n")
    with pytest.raises(ValueError, match=r"train\.jsonl holds no documents"):
        encode()
    assert not (tmp_path / "store" / "store.json").exists()


def test_json_prints_one_object_as_the_last_line(train, encode):
    card = json.loads(train("--json").splitlines()[-1])
    assert card["made_from"]["vocab_size"] == VOCAB_SIZE
    store = json.loads(encode("--json").splitlines()[-1])
    assert store["num_documents"] == len(TEXTS)
    assert store["tokenizer_sha256"] == card["sha256"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--input", "none.jsonl", "--vocab_size", "300"), "none.jsonl"),
        (("--input", "in.jsonl", "--vocab_size", "100"), "vocab_size=100 must be at least 260"),
    ],
)
def test_wrong_argument_is_one_line_and_leaves_no_file(root_dir, tmp_path, arguments, error):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    done = subprocess.run(
        [sys.executable, "-m", "jaxtrain.tokenize", "train", *arguments, "--out", "t.json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root_dir)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert error in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
