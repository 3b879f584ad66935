import os

import pytest

from jaxtrain import files
from jaxtrain.corpus.collection import Collection
from jaxtrain.corpus.documents import Document, write_documents


@pytest.fixture
def paths(tmp_path):
    found = []
    for name in ("a", "b"):
        found.append(tmp_path / f"{name}.jsonl")
        documents = [Document(f"{name}{i}", f"text {i}", name, {}) for i in range(3)]
        write_documents(found[-1], documents)
    return list(map(str, found))


def test_documents_come_in_the_order_of_the_inputs(paths):
    assert [each.id for each in Collection(paths).documents("x")] == [
        *("a0", "a1", "a2", "b0", "b1", "b2")
    ]
    assert next(Collection(paths[::-1]).documents("x")).id == "b0"


def test_recipe_is_of_contents_and_given_names_in_any_order(paths):
    hashes = [files.sha256(path) for path in paths]
    assert list(Collection(paths).sha256.values()) == hashes
    plain = Collection(paths).recipe
    assert plain == sorted([["", each] for each in hashes])
    assert Collection(paths[::-1]).recipe == plain
    named = Collection([f"en={paths[0]}", paths[1]]).recipe
    assert named == sorted([["en", hashes[0]], ["", hashes[1]]])


def test_what_is_no_document_is_counted_anew_in_each_pass(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": ""}\n{"text": ""}\n')
    collection = Collection([str(tmp_path / "a.jsonl")])
    for _ in range(2):
        assert len(list(collection.documents("x"))) == 1
        assert sum(collection.num_skipped.values()) == 2


def test_progress_ends_at_the_whole_size(paths, capfd, monkeypatch):
    shown = []

    class Bar:
        def __enter__(self):
            return shown.append

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("jaxtrain.corpus.collection.show_bytes", lambda *_: Bar())
    list(Collection(paths).documents("x"))
    assert shown == sorted(shown)
    assert shown[-1] >= sum(os.path.getsize(path) for path in paths)


def test_a_hint_at_a_setting_says_that_it_is_prepares(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n')
    with pytest.raises(ValueError, match=r"prepare's config\.reading\.text_field") as caught:
        list(Collection([str(path)]).documents("reading"))
    assert "\n" not in str(caught.value)
