import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus import rejected
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.examples import text_sha256
from jaxtrain.corpus.rejected import Rejected, merge_rejected, read_rejected
from jaxtrain.corpus.step import Outcome


def _save(path, rows, keep):
    """Writes the file of one chunk; rows of (text, rule or None)."""
    documents = [Document(f"d-{text[:9]}", text, "web", {"origin": "f:3"}) for text, _ in rows]
    outcomes = [
        Outcome(document, rule, f"for {rule}" if rule else "")
        for document, (_, rule) in zip(documents, rows, strict=True)
    ]
    part = Rejected(keep)
    part.record("heuristics", documents, outcomes)
    part.save(path)
    return path


def _all_rows(directory):
    return [row for path in sorted(directory.iterdir()) for row in read_rejected(path)]


def test_all_holds_every_removed_document_whole_with_its_reason(tmp_path):
    long = "x" * 50_000
    parts = [
        _save(tmp_path / "0", [("a", "short"), ("b", None)], "all"),
        _save(tmp_path / "1", [(long, "one word")], "all"),
    ]
    merge_rejected(parts, tmp_path / "out", "all")
    rows = _all_rows(tmp_path / "out")
    assert [row.text for row in rows] == ["a", long]
    assert rows[0] == (
        *(text_sha256("a"), "d-a", "a", "web", "f:3"),
        *("heuristics", "short", "for short"),
    )


def test_none_writes_nothing(tmp_path):
    parts = [_save(tmp_path / "0", [("a", "short")], "none")]
    merge_rejected(parts, tmp_path / "out", "none")
    assert not (tmp_path / "out").exists()


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 30).map(str), st.sampled_from(["short", "long", None]))),
    st.integers(0, 40),
    st.randoms(),
)
def test_sample_depends_neither_on_order_nor_on_chunks(tmp_path_factory, rows, cut, random):
    folder = tmp_path_factory.mktemp("rejected")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rejected, "SAMPLE_PER_RULE", 4)
        shuffled = random.sample(rows, len(rows))
        one = [_save(folder / "whole", rows, "sample")]
        two = [
            _save(folder / "first", shuffled[:cut], "sample"),
            _save(folder / "second", shuffled[cut:], "sample"),
        ]
        merge_rejected(one, folder / "one", "sample")
        merge_rejected(two, folder / "two", "sample")
    texts = {rule: {text for text, each in rows if each == rule} for rule in ("short", "long")}
    expected = sum(min(4, len(found)) for found in texts.values())
    if not expected:
        assert not (folder / "one").exists()
        return
    assert len(_all_rows(folder / "one")) == expected
    assert (folder / "one" / "00000.parquet").read_bytes() == (
        folder / "two" / "00000.parquet"
    ).read_bytes()


def test_sample_takes_the_smallest_hashes_of_each_rule(tmp_path, monkeypatch):
    monkeypatch.setattr(rejected, "SAMPLE_PER_RULE", 3)
    texts = [str(number) for number in range(50)]
    part = _save(tmp_path / "0", [(text, "short") for text in texts], "sample")
    merge_rejected([part], tmp_path / "out", "sample")
    assert [row.text for row in _all_rows(tmp_path / "out")] == sorted(texts, key=text_sha256)[:3]


def test_sample_cuts_long_texts_and_keeps_the_hash_of_the_whole(tmp_path):
    long = "x" * 50_000
    part = _save(tmp_path / "0", [(long, "one word")], "sample")
    merge_rejected([part], tmp_path / "out", "sample")
    (row,) = _all_rows(tmp_path / "out")
    assert row.text == "x" * rejected.SAMPLE_CHARACTERS
    assert row.sha256 == text_sha256(long)


def test_files_are_cut_by_bytes_and_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(rejected, "_ROW_GROUP_BYTES", 10)
    monkeypatch.setattr(rejected, "_ROW_GROUPS_PER_FILE", 2)
    texts = [f"{number:04d}" for number in range(20)]
    part = _save(tmp_path / "0", [(text, "short") for text in texts], "all")
    merge_rejected([part], tmp_path / "out", "all")
    assert len(list((tmp_path / "out").iterdir())) == 4
    assert [row.text for row in _all_rows(tmp_path / "out")] == texts
