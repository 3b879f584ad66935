import json
import os
import shutil
import subprocess
import sys

import pytest

from jaxtrain import files, tokenize
from jaxtrain.corpus.documents import Document, write_documents
from jaxtrain.data.store import Store
from jaxtrain.tokenizer.tokenizer import Tokenizer
from tests.chats import base_tokenizer, exchange, write_rows

TEXTS = ["the red fox runs by the old oak\n" * 3, "up\u2028down <|eos|> ", "  日本語 café 👩‍🚀"]
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
    def start(*arguments, out="tokenizer", vocab_size=VOCAB_SIZE, files_in=(corpus,)):
        size = ("--vocab_size", vocab_size)
        return run("train", "--input", *files_in, *size, "--out", out, *arguments)

    return start


@pytest.fixture
def encode(run, corpus):
    def start(*arguments, out="store", tokenizer="tokenizer"):
        given = ("--input", corpus, "--tokenizer", tokenizer, "--out", out)
        return run("encode", *given, *arguments)

    return start


def test_trained_folder_is_read_as_a_tokenizer_and_says_what_it_is(train, tmp_path):
    train("--num_reserved", "2", "--pad_to_multiple", "8", vocab_size=273)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    record = files.read_json(tmp_path / "tokenizer" / "training.json")
    assert record["sha256"] == tokenizer.sha256
    assert record["num_ids"] == tokenizer.vocab_size == 280
    assert len(tokenizer.reserved_ids) == 9
    assert record["special_ids"] == dict(tokenizer.special_ids)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert record["sample"] == {"web": {"documents": len(TEXTS), "bytes": num_bytes}}


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece_unigram", "sentencepiece_bpe"])
def test_every_kind_goes_from_text_to_store(train, encode, tmp_path, kind):
    train("--kind", kind, vocab_size=530 if kind == "wordpiece" else 295)
    encode()
    stored = Tokenizer.load(tmp_path / "store")
    assert Store("store").tokenization.tokenizer_sha256 == stored.sha256
    has_form = (tmp_path / "tokenizer" / "transformers" / "tokenizer.json").exists()
    assert has_form == kind.startswith("sentencepiece")


def test_weights_decide_the_shares_and_are_part_of_the_record(run, tmp_path):
    sources = {}
    for name, count in (("en", 60), ("zh", 30)):
        path = tmp_path / f"{name}.jsonl"
        texts = [f"{name} text number {number:03d} of many" for number in range(count)]
        write_documents(path, [Document(f"{name}{t}", t, "x", {}) for t in texts])
        sources[name] = f"{name}={path}"
    given = ("--vocab_size", "270", "--out", "t", "--weight", "en=1", "--weight", "zh=3")
    out = run("train", "--input", *sources.values(), *given)
    assert "zh: 30 documents, 0.0 MB, 75.0% of the sample, all there are" in out
    assert "en: 10 documents, 0.0 MB, 25.0% of the sample\n" in out
    assert "nothing to do" in run("train", "--input", *list(sources.values())[::-1], *given)
    with pytest.raises(ValueError, match=r"made_from\.weights\.en: 1\.0 -> 2\.0"):
        run("train", "--input", *sources.values(), *given[:-4], "-w", "en=2", "-w", "zh=3")
    with pytest.raises(ValueError, match="weights must name each source and no other"):
        run("train", "--input", *sources.values(), *given[:3], "u", "--weight", "en=1")


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
    for name in ("tokenizer", "store"):
        os.rename(name, elsewhere / name)
    os.rename(corpus, elsewhere / "renamed.jsonl")
    monkeypatch.chdir("/")
    out = run(
        *("encode", "--input", elsewhere / "renamed.jsonl", "--out", elsewhere / "store"),
        *("--tokenizer", elsewhere / "tokenizer"),
    )
    assert "already holds these documents" in out
    assert Store(str(elsewhere / "store")).metadata.fingerprint == fingerprint


@pytest.mark.parametrize("change", ["text", "tokenizer", "form"])
def test_store_of_other_content_is_never_reused_and_stays_as_it_was(train, encode, corpus, change):
    """LDR-13: one byte of the text, a tokenizer of the same name, or other special tokens."""
    train()
    encode()
    before = files.sha256("store/store.json")
    arguments = ()
    if change == "text":
        corpus.write_bytes(corpus.read_bytes().replace(b"old oak", b"odd oak", 1))
        reason = "the text has changed"
    elif change == "form":
        arguments = ("--form", "text eos")
        reason = r"it has document_form=\['bos', 'text', 'eos'\], not \['text', 'eos'\]"
    else:  # another content under the same path
        shutil.rmtree("tokenizer")
        train(vocab_size=VOCAB_SIZE + 1)
        reason = "it was made with another tokenizer"
    with pytest.raises(ValueError, match=f"store exists and {reason}; give another --out"):
        encode(*arguments)
    assert files.sha256("store/store.json") == before
    encode(*arguments, out="another")
    assert Store("another").metadata.fingerprint != Store("store").metadata.fingerprint


def test_normalization_is_part_of_the_fingerprint_of_a_store(train, encode, tmp_path):
    """TOK-12"""
    train()
    train("--normalization", "nfkc", out="folding")
    encode()
    encode(out="folded", tokenizer="folding")
    plain, folded = (Store(name).metadata for name in ("store", "folded"))
    assert plain.tokenization.settings["normalization"] == "identity"
    assert folded.tokenization.settings["normalization"] == '{"type": "NFKC"}'
    assert plain.fingerprint != folded.fingerprint


def test_tokenizer_of_other_settings_or_text_is_refused_with_the_difference(train, corpus):
    train()
    with pytest.raises(ValueError, match=r"tokenizer exists .*vocab_size: 270 -> 271"):
        train(vocab_size=VOCAB_SIZE + 1)
    corpus.write_bytes(corpus.read_bytes().replace(b"old oak", b"odd oak", 1))
    with pytest.raises(ValueError, match=r"tokenizer exists .*inputs"):
        train()


def test_tokenizer_edited_by_hand_is_not_taken_for_the_trained_one(train, tmp_path):
    train()
    path = tmp_path / "tokenizer" / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(ValueError, match=r"training\.json does not describe it"):
        train()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_tokenizer_that_someone_else_put_there_is_not_replaced(train, tmp_path, name):
    path = tmp_path / "tokenizer" / name
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"training\.json does not describe it"):
        train()
    assert path.read_text() == "{}"


def test_training_cut_short_after_the_record_is_made_good(train, tmp_path):
    train()
    path = tmp_path / "tokenizer" / "tokenizer.json"
    trained = path.read_bytes()
    path.unlink()
    train()
    assert path.read_bytes() == trained


def test_several_inputs_in_any_order_are_one_recipe(train, corpus, tmp_path):
    more = tmp_path / "more.jsonl"
    write_documents(more, [Document("m", "an owl in the old oak", "web", {})])
    train(files_in=(corpus, more))
    assert "already holds" in train(files_in=(more, corpus))


def test_report_puts_tokenizers_side_by_side_and_leaves_page_plot_and_figures(
    train, run, corpus, tmp_path
):
    train()
    train("--kind", "wordpiece", vocab_size=530, out="pieces")
    given = ("--input", f"en={corpus}", "--tokenizer", "tokenizer", "pieces", "--d_model", "64")
    out = run("report", *given, "--out", "report", "--json")
    found = json.loads(out.splitlines()[-1])
    assert list(found["tokenizers"]) == ["tokenizer", "pieces"]
    assert "source: en" in found["texts"]
    assert found["tokenizers"]["pieces"]["embedding_parameters"] == 530 * 64
    assert found == files.read_json(tmp_path / "report" / "report.json")
    assert (tmp_path / "report" / "report.md").read_text().splitlines()[0] in out
    plot = (tmp_path / "report" / "bytes_per_token.svg").read_text()
    assert plot.startswith("<svg")
    assert "source: en · pieces" in plot


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
        [sys.executable, "-m", "jaxtrain.tokenize", "train", *arguments, "--out", "t"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root_dir)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert error in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("encode", "--form", "bos bos text"), "'bos bos text' must be one of 'bos text eos'"),
        (("train", "--weight", "en"), "'en' must be NAME=NUMBER"),
        (("train", "--kind", "words"), "invalid choice: 'words'"),
        (("chat", "--thinking", "no"), "'no' must be train, mask or a number of tokens"),
        (("answers", "--too_long", "right"), "invalid choice: 'right'"),
    ],
)
def test_argument_of_the_wrong_form_is_refused(run, capsys, arguments, message):
    with pytest.raises(SystemExit):
        run(*arguments)
    assert message in capsys.readouterr().err


def test_conversations_go_into_a_store_and_can_be_looked_at(run, tmp_path):
    base_tokenizer().save(tmp_path / "base")
    rows = write_rows(tmp_path / "chats.jsonl", [exchange("hi", "yo")])
    given = ("--input", rows, "--tokenizer", "base", "--chat_template", "chatml")
    shown = run("chat", *given, "--show", "1")
    assert "⟦yo<|im_end|>⟧" in shown
    assert not (tmp_path / "chats").exists()
    out = run("chat", *given, "--out", "chats", "--json")
    record = json.loads(out.splitlines()[-1])
    assert record["ledger"]["trained_tokens"] == 3
    assert Store("chats").has_mask
    assert "already holds these documents" in run("chat", *given, "--out", "chats")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --out, where the store goes, or --show"),
        (("--too_long", "left", "--out", "x"), "--too_long=left cuts at --max_len; give it"),
        (("--out", "x"), "--chat_template: chatml, llama3, seed, or a file"),
    ],
)
def test_a_chat_store_that_cannot_be_made_is_refused(run, tmp_path, arguments, message):
    base_tokenizer().save(tmp_path / "base")
    rows = write_rows(tmp_path / "chats.jsonl", [exchange("hi", "yo")])
    with pytest.raises(ValueError, match=message):
        run("chat", "--input", rows, "--tokenizer", "base", *arguments)
    assert not (tmp_path / "x").exists()


def test_preferences_go_into_a_store_and_can_be_looked_at(run, tmp_path):
    base_tokenizer().save(tmp_path / "base")
    rows = write_rows(tmp_path / "pairs.jsonl", [{"prompt": "q", "chosen": "a", "rejected": "b"}])
    given = ("--input", rows, "--tokenizer", "base", "--chat_template", "chatml")
    shown = run("answers", *given, "--show", "1")
    assert "⟦a<|im_end|>⟧" in shown
    assert not (tmp_path / "pairs").exists()
    out = run("answers", *given, "--out", "pairs", "--json")
    record = json.loads(out.splitlines()[-1])
    assert record["ledger"]["answers"] == 2
    assert record["settings"]["answers"] == Store("pairs").answers == "pairs"
    assert "already holds these documents" in run("answers", *given, "--out", "pairs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --out, where the store goes, or --show"),
        (("--too_long", "left", "--out", "x"), "--too_long=left cuts at --max_len; give it"),
        (("--max_len", "0", "--out", "x"), "--max_len=0 must be at least 1"),
        (("--show", "-1", "--out", "x"), "--show=-1 must be at least 1"),
        (("--max_bad_frac", "nan", "--out", "x"), "--max_bad_frac=nan must be from 0 to 1"),
        (("--kl_group", "0", "--out", "x"), "--kl_group=0 must be at least 1"),
        (("--out", "x"), "--chat_template: chatml, llama3, seed, or a file"),
    ],
)
def test_an_answer_store_that_cannot_be_made_is_refused(run, tmp_path, arguments, message):
    base_tokenizer().save(tmp_path / "base")
    rows = write_rows(tmp_path / "pairs.jsonl", [{"prompt": "q", "chosen": "a", "rejected": "b"}])
    with pytest.raises(ValueError, match=message):
        run("answers", "--input", rows, "--tokenizer", "base", *arguments)
    assert not (tmp_path / "x").exists()
