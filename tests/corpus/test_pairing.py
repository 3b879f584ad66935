from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus import pairing
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.fates import Fates, text_hash
from jaxtrain.corpus.pairing import Row, pair_documents
from jaxtrain.corpus.step import Outcome

# (id, text, rule that removes it or None, text as written)
_documents = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from([None, "short"]),
        st.sampled_from(["x", "Y"]),
    ),
    max_size=8,
)


def _save(folder, rows, per_file=3):
    """Writes fates as a run does, a few documents to a chunk."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for start in range(0, len(rows), per_file):
        part = rows[start : start + per_file]
        documents = [Document(name, text, "s", {}) for name, text, _, _ in part]
        outcomes = [
            Outcome(document, rule)
            for document, (_, _, rule, _) in zip(documents, part, strict=True)
        ]
        fates = Fates(documents)
        fates.record("length", outcomes)
        left = [
            document._replace(text=new)
            for document, (_, _, rule, new) in zip(documents, part, strict=True)
            if rule is None
        ]
        fates.write(["train"] * len(left), left)
        paths.append(folder / f"{start:05d}.parquet")
        fates.save(paths[-1])
    return paths


def _row(name, text, rule=None, new=None):
    new_hash = None if rule else text_hash(text if new is None else new)
    return Row(text_hash(text), name, f"length: {rule}" if rule else "train", new_hash)


def _pairs(folder, a, b):
    return list(pair_documents(_save(folder / "a", a), _save(folder / "b", b)))


def test_document_of_the_same_text_and_id_is_its_own_like(tmp_path):
    rows = [("a", "x", None, "x"), ("b", "y", "short", "")]
    pairs = _pairs(tmp_path, rows, rows[::-1])
    assert sorted(pairs) == sorted([(_row("a", "x"),) * 2, (_row("b", "y", "short"),) * 2])


def test_renamed_document_is_found_by_its_text(tmp_path):
    pairs = _pairs(tmp_path, [("f:0", "x", None, "x")], [("g:9", "x", "short", "")])
    assert pairs == [(_row("f:0", "x"), _row("g:9", "x", "short"))]


def test_edited_document_is_found_by_its_id(tmp_path):
    pairs = _pairs(tmp_path, [("a", "x", None, "x")], [("a", "y", None, "y")])
    assert pairs == [(_row("a", "x"), _row("a", "y"))]


def test_text_goes_before_an_id_that_has_moved_on_to_another_document(tmp_path):
    a = [("f:0", "x", None, "x"), ("f:1", "y", None, "y")]
    b = [("f:0", "new", None, "new"), ("f:1", "x", None, "x"), ("f:2", "y", None, "y")]
    assert Counter(_pairs(tmp_path, a, b)) == Counter(
        [
            (_row("f:0", "x"), _row("f:1", "x")),
            (_row("f:1", "y"), _row("f:2", "y")),
            (None, _row("f:0", "new")),
        ]
    )


def test_of_equal_texts_those_of_the_same_id_go_together(tmp_path):
    a = [("p", "x", None, "x"), ("q", "x", "short", "")]
    b = [("q", "x", None, "x"), ("r", "x", None, "x")]
    assert Counter(_pairs(tmp_path, a, b)) == Counter(
        [(_row("q", "x", "short"), _row("q", "x")), (_row("p", "x"), _row("r", "x"))]
    )


@settings(max_examples=40)
@given(_documents, _documents, st.integers(1, 4))
def test_every_document_is_in_one_pair_whatever_the_partitions(tmp_path_factory, a, b, per):
    folder = tmp_path_factory.mktemp("pairing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairing, "_ROWS_PER_PARTITION", per)
        pairs = _pairs(folder, a, b)
    patched_off = list(
        pair_documents(sorted((folder / "a").iterdir()), sorted((folder / "b").iterdir()))
    )
    assert Counter(pairs) == Counter(patched_off)
    for side, rows in enumerate((a, b)):
        found = Counter(pair[side] for pair in pairs if pair[side])
        assert found == Counter(_row(*row) for row in rows)
    # No two that are left alone have a text or an id in common.
    alone = [{(row.id, row.text_hash) for row in side} for side in _alone(pairs)]
    assert not {name for name, _ in alone[0]} & {name for name, _ in alone[1]}
    assert not {text for _, text in alone[0]} & {text for _, text in alone[1]}


def _alone(pairs):
    only_a = [a for a, b in pairs if a and not b]
    only_b = [b for a, b in pairs if b and not a]
    return only_a, only_b


@given(_documents)
@settings(max_examples=20)
def test_run_is_its_own_like_in_any_order_and_chunks(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("pairing")
    unique = list({(name, text): row for row in rows for name, text in [row[:2]]}.values())
    a, b = _save(folder / "a", unique), _save(folder / "b", unique[::-1], per_file=2)
    assert all(left == right for left, right in pair_documents(a, b))
