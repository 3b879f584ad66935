import json

import pytest

from jaxtrain.corpus import build
from jaxtrain.corpus.documents import Document, read_documents
from jaxtrain.corpus.ledger import Ledger
from jaxtrain.corpus.stdlib import StdlibConfig


def _documents():
    texts = [f"def f_{i}():\n    return {i}\n" for i in range(200)]
    return [Document(f"m_{i}.py", text, "s", {}) for i, text in enumerate(texts + texts[:10])]


def _build(directory, documents=None, **config):
    documents = _documents() if documents is None else documents
    ledger = Ledger()
    for document in documents:
        ledger.take(document.num_bytes)
    config = build.CorpusConfig(stdlib=StdlibConfig(), **config)
    return build.build(documents, ledger, config, directory)


def test_train_and_heldout_are_all_unique_documents_once(tmp_path):
    _build(tmp_path)
    sides = [list(read_documents(tmp_path / f"{name}.jsonl")) for name in ("train", "heldout")]
    assert all(sides)
    assert sorted(d.id for side in sides for d in side) == sorted(f"m_{i}.py" for i in range(200))


def test_card_counts_what_the_files_hold(tmp_path):
    card = _build(tmp_path)
    for name in ("train", "heldout"):
        documents = list(read_documents(tmp_path / f"{name}.jsonl"))
        held = {"documents": len(documents), "bytes": sum(len(d.text.encode()) for d in documents)}
        assert card["ledger"]["out"][name] == held
        assert held.items() <= card["outputs"][name].items()
    assert card["ledger"]["dropped"]["exact duplicate"]["documents"] == 10
    assert set(card["heldout_bits_per_byte"]) == {"zlib", "lzma"}


def test_same_input_gives_the_same_bytes_in_any_directory(tmp_path):
    for name in ("one", "two"):
        _build(tmp_path / name)
    for name in ("train.jsonl", "heldout.jsonl", "card.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_card_read_back_is_the_card_built(tmp_path):
    assert build.read_card(tmp_path) is None
    card = _build(tmp_path)
    assert build.read_card(tmp_path) == card
    assert json.loads((tmp_path / "card.json").read_text()) == card


@pytest.mark.parametrize("damage", ["edit", "remove"])
def test_card_of_a_damaged_corpus_is_refused(tmp_path, damage):
    _build(tmp_path)
    path = tmp_path / "train.jsonl"
    if damage == "edit":
        path.write_bytes(path.read_bytes().replace(b"return 1", b"return 2", 1))
    else:
        path.unlink()
    with pytest.raises(
        ValueError, match=r"train\.jsonl is not the file that .*card\.json describes"
    ):
        build.read_card(tmp_path)


def test_no_card_stands_beside_half_a_corpus(tmp_path, monkeypatch):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build, "write_documents", full_disk)
    with pytest.raises(OSError, match="No space left"):
        _build(tmp_path)
    assert build.read_card(tmp_path) is None


def test_fraction_outside_zero_to_one_is_refused():
    with pytest.raises(ValueError, match=r"heldout_frac=1\.0 must lie between 0 and 1"):
        build.CorpusConfig(stdlib=StdlibConfig(), heldout_frac=1.0)


def test_corpus_with_nothing_to_train_on_is_an_error(tmp_path):
    held_out_only = [d for d in _documents()[:200] if d.id in ("m_0.py",)]
    with pytest.raises(ValueError, match="no document is left to train on"):
        _build(tmp_path, held_out_only, heldout_frac=1 - 1e-12)
    assert list(tmp_path.iterdir()) == []
