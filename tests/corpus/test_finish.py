import json

import pyarrow.parquet as pq
import pytest

from jaxtrain.corpus import finish
from jaxtrain.corpus.layout import Layout
from tests.corpora import documents, make_config, prepare, texts, tree, write_lines


@pytest.fixture
def config(tmp_path):
    records = [{"id": str(i), "text": text} for i, text in enumerate(texts(60))]
    lines = write_lines(tmp_path / "a.jsonl", records)
    return make_config([lines], chunk_bytes=3_000, heldout_frac=0.3)


def test_shards_are_filled_from_chunks_in_order(config, tmp_path, monkeypatch):
    prepare(config, tmp_path / "one")
    monkeypatch.setattr(finish, "_SHARD_BYTES", 4_000)
    prepare(config, tmp_path / "several")
    names = sorted(path.name for path in (tmp_path / "several" / "train").iterdir())
    assert names == [f"{i:05d}.parquet" for i in range(len(names))]
    assert len(names) > 1
    assert documents(tmp_path / "several") == documents(tmp_path / "one")


def test_card_describes_the_files_and_read_card_compares_them(config, tmp_path):
    card = prepare(config, tmp_path / "run")
    layout = Layout(tmp_path / "run")
    assert finish.read_card(layout) == card == json.loads(layout.card.read_text())
    hashes = tree(tmp_path / "run")
    for name in ("train", "heldout"):
        written = card["outputs"][name]
        assert written["files"] == {"00000.parquet": hashes[f"{name}/00000.parquet"]}
        rows = pq.read_table(tmp_path / "run" / name)
        sizes = [len(text.encode()) for text in rows.column("text").to_pylist()]
        assert (written["documents"], written["bytes"]) == (len(sizes), sum(sizes))
    assert card["outputs"]["heldout"]["compressed_bytes"] == sum(sizes)
    assert not layout.work.exists()


@pytest.mark.parametrize("damage", ["edit", "remove"])
def test_card_of_a_damaged_corpus_is_refused(config, tmp_path, damage):
    prepare(config, tmp_path / "run")
    path = tmp_path / "run" / "train" / "00000.parquet"
    if damage == "edit":
        path.write_bytes(path.read_bytes() + b" ")
    else:
        path.unlink()
    with pytest.raises(ValueError, match=r"00000\.parquet is not the file that .*card\.json desc"):
        finish.read_card(Layout(tmp_path / "run"))


def test_fates_are_of_all_documents_in_the_order_read(config, tmp_path):
    prepare(config, tmp_path / "run")
    ids = [
        identity
        for path in sorted((tmp_path / "run" / "fates").iterdir())
        for identity in pq.read_table(path).column("id").to_pylist()
    ]
    assert ids == [str(i) for i in range(60)]


def test_without_a_card_there_is_none(tmp_path):
    assert finish.read_card(Layout(tmp_path)) is None
