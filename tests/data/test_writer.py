import json
import pathlib
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from jaxtrain.data.metadata import StoreError
from jaxtrain.data.store import Store, read_metadata
from jaxtrain.data.writer import PartWriter, append, create, orphans, why_stale


def write_parts(path, tokenization, documents, part_tokens=1 << 20):
    with PartWriter(str(path), tokenization, part_tokens) as writer:
        for number, ids in enumerate(documents):
            writer.add(ids, document_id=f"d{number}", source="s", num_text_bytes=len(ids))
    return writer.parts


def tokens(store):
    out = np.zeros(store.num_tokens, np.int32)
    store.read(np.array([0]), np.array([store.num_tokens]), np.array([0]), out)
    return out.tolist()


def test_parts_end_at_the_document_that_fills_them(tmp_path, tokenization):
    parts = write_parts(tmp_path, tokenization, [[1] * 3, [2] * 3, [3] * 9, [4]], part_tokens=5)
    assert [part.num_tokens for part in parts] == [6, 9, 1]
    assert [part.num_documents for part in parts] == [2, 1, 1]
    assert [part.num_text_bytes for part in parts] == [6, 9, 1]


def test_parts_are_invisible_until_committed(tmp_path, tokenization):
    write_parts(tmp_path, tokenization, [[1, 2]])
    with pytest.raises(StoreError, match="no token store here"):
        Store(str(tmp_path))


def test_interrupted_append_leaves_the_store_as_it_was(tmp_path, tokenization):
    path = str(tmp_path)
    create(path, tokenization, "t", write_parts(tmp_path, tokenization, [[1, 2]]))
    before = read_metadata(path)
    write_parts(tmp_path, tokenization, [[3, 4]])  # and then a crash: no commit
    (tmp_path / "parts" / "half.tokens").write_bytes(b"xx")
    assert read_metadata(path) == before
    store = Store(path)
    store.verify()
    assert tokens(store) == [1, 2]


def test_left_over_parts_are_told_from_those_of_the_store(tmp_path, tokenization):
    path = str(tmp_path)
    create(path, tokenization, "t", write_parts(tmp_path, tokenization, [[1, 2]]))
    assert orphans(path) == []
    (left,) = write_parts(tmp_path, tokenization, [[3]])
    assert orphans(path) == sorted(left.path(kind) for kind in left.files)


def test_append_adds_documents_after_the_others(tmp_path, tokenization):
    path = str(tmp_path)
    create(path, tokenization, "t", write_parts(tmp_path, tokenization, [[1, 2]]))
    append(path, tokenization, "u", write_parts(tmp_path, tokenization, [[3], [4, 5]]))
    store = Store(path)
    store.verify()
    assert tokens(store) == [1, 2, 3, 4, 5]
    assert store.document_ends.tolist() == [2, 3, 5]
    assert store.metadata.text_sha256 == ("t", "u")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer_sha256": "b" * 64}, "made with another tokenizer"),
        ({"vocab_size": 400}, "it has vocab_size=300, not 400"),
        ({"special_ids": {"eos": 9}}, "it has bos=256, not None"),
        ({"settings": {"adds_eos": False}}, "it has adds_eos=True, not False"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_append_of_another_tokenization_is_refused(tmp_path, tokenization, change, message):
    path = str(tmp_path)
    create(path, tokenization, "t", write_parts(tmp_path, tokenization, [[1, 2]]))
    before = (tmp_path / "store.json").read_bytes()
    other = replace(tokenization, **change)
    with pytest.raises(StoreError, match=message):
        append(path, other, "u", write_parts(tmp_path, other, [[3]]))
    assert (tmp_path / "store.json").read_bytes() == before


@pytest.mark.parametrize("scheme", ["disk", "memory"])
def test_append_fails_when_another_one_came_between(tmp_path, tokenization, scheme, monkeypatch):
    path = str(tmp_path) if scheme == "disk" else "memory://between/"
    create(path, tokenization, "t", write_parts(path, tokenization, [[1]]))
    mine, other = (write_parts(path, tokenization, [[token]]) for token in (2, 3))

    def read_late(path):
        metadata = read_metadata(path)
        monkeypatch.undo()
        append(path, tokenization, "u", other)
        return metadata

    monkeypatch.setattr("jaxtrain.data.writer.read_metadata", read_late)
    with pytest.raises(StoreError, match="another process changed the store"):
        append(path, tokenization, "v", mine)
    assert tokens(Store(path)) == [1, 3]


def test_create_replaces_the_store_as_a_whole(tmp_path, tokenization):
    path = str(tmp_path)
    create(path, tokenization, "t", write_parts(tmp_path, tokenization, [[1, 2]]))
    old = Store(path)
    other = replace(tokenization, tokenizer_sha256="b" * 64)
    create(path, other, "t", write_parts(tmp_path, other, [[7]]))
    assert tokens(Store(path)) == [7]
    assert tokens(old) == [1, 2]  # readers of the old store are not disturbed


def test_processes_write_parts_of_one_store_in_parallel(tmp_path, tokenization):
    script = """
import json, pickle, sys
from jaxtrain.data.metadata import Tokenization
from jaxtrain.data.writer import PartWriter
path, worker, tokenization = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
with PartWriter(path, Tokenization(**tokenization), part_tokens=40) as writer:
    for i in range(50):
        writer.add([worker, i], document_id=f"{worker}-{i}", source="s", num_text_bytes=1)
sys.stdout.buffer.write(pickle.dumps(writer.parts))
"""
    fields = json.dumps(tokenization.__dict__)
    command = [sys.executable, "-c", script, str(tmp_path)]
    running = [
        subprocess.Popen([*command, str(worker), fields], stdout=subprocess.PIPE)
        for worker in range(3)
    ]
    parts = [part for process in running for part in pickle.loads(process.communicate()[0])]
    assert len(parts) == 9
    create(str(tmp_path), tokenization, "t", parts)
    store = Store(str(tmp_path))
    store.verify()
    assert tokens(store) == [
        token for worker in range(3) for i in range(50) for token in (worker, i)
    ]
    assert store.document_name(120) == ("2-20", "s")


def test_document_with_an_id_outside_the_vocabulary_is_refused(tmp_path, tokenization):
    writer = PartWriter(str(tmp_path), tokenization)
    for bad in (300, -1):
        with pytest.raises(StoreError, match=f"'d' has token id {bad}, but the vocabulary has 300"):
            writer.add([1, bad], document_id="d", source="file:7", num_text_bytes=1)
    assert writer.parts == ()


def test_writer_that_fails_inside_the_block_leaves_no_part(tmp_path, tokenization):
    writer = PartWriter(str(tmp_path), tokenization)

    def fail_on_the_way():
        with writer:
            writer.add([1], document_id="d", source="s", num_text_bytes=1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_on_the_way()
    assert writer.parts == ()
    assert not list(pathlib.Path(tmp_path).rglob("*.tokens"))


def test_ids_that_are_no_integers_are_refused(tmp_path, tokenization):
    writer = PartWriter(str(tmp_path), tokenization)
    with pytest.raises(StoreError, match="file:7: document 'd' has float64 ids, not integers"):
        writer.add(np.array([1.5]), document_id="d", source="file:7", num_text_bytes=1)


def test_full_disk_is_one_readable_line_and_leaves_the_store_as_it_was(tmp_path, tokenization):
    path = str(tmp_path)
    create(path, tokenization, "t", write_parts(tmp_path, tokenization, [[1, 2]]))
    script = """
import json, resource, sys
from jaxtrain.data.metadata import StoreError, Tokenization
from jaxtrain.data.writer import PartWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # no file grows beyond: the disk is full
try:
    with PartWriter(sys.argv[1], Tokenization(**json.loads(sys.argv[2]))) as writer:
        writer.add([1] * 10_000, document_id="d", source="s", num_text_bytes=1)
except StoreError as error:
    print(error)
"""
    fields = json.dumps(tokenization.__dict__)
    command = [sys.executable, "-c", script, path, fields]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r".*\.tokens: cannot be written: .*; the store is as it was: .*\n", output)
    store = Store(path)
    store.verify()
    assert tokens(store) == [1, 2]


def test_place_that_cannot_be_written_is_one_readable_line(tmp_path, tokenization):
    (tmp_path / "parts").write_text("a file where the directory should be")
    with pytest.raises(StoreError, match=r"cannot be written: .*Not a directory; ") as error:
        write_parts(tmp_path, tokenization, [[1]])
    assert "\n" not in str(error.value)


# --------------------------------------------- when text has to be tokenized again, and when not


def test_store_is_current_for_the_same_content_wherever_it_lies(
    tmp_path, tokenization, monkeypatch, write_store
):
    """LDR-14: from another working directory too."""
    for folder in ("a", "b"):
        path = write_store(tmp_path / folder, [[1, 2]], text_sha256="t")
        monkeypatch.chdir(tmp_path / folder)
        assert why_stale(path, tokenization, ["t"]) is None
        assert why_stale(".", tokenization, ["t"]) is None


@pytest.mark.parametrize(
    ("change", "text", "reason"),
    [
        ({"tokenizer_sha256": "b" * 64}, ["t"], "it was made with another tokenizer"),
        ({"settings": {"adds_eos": True, "lower": True}}, ["t"], "it has lower=None, not True"),
        ({}, ["u"], "the text has changed"),
        ({}, ["t", "u"], "the text has changed"),
    ],
    ids=["tokenizer", "settings", "text", "more text"],
)
def test_each_change_of_content_alone_makes_a_store_stale(
    make_store, tokenization, change, text, reason
):
    """LDR-13: tokenizer, settings and text, each alone."""
    path = make_store([[1, 2]], text_sha256="t")
    assert why_stale(path, replace(tokenization, **change), text) == reason


def test_settings_that_json_changes_do_not_make_a_store_stale(make_store, tokenization):
    settings = {"pattern": ("a", "b"), "limit": 4.0}
    other = replace(tokenization, settings=settings)
    path = make_store([[1]], tokenization=other, text_sha256="t")
    assert why_stale(path, other, ["t"]) is None
    assert Store(path).num_tokens == 1


def test_missing_store_is_stale(tmp_path, tokenization):
    assert "no token store here" in str(why_stale(str(tmp_path), tokenization, ["t"]))


def test_mask_of_another_length_than_the_ids_is_refused(tmp_path, tokenization):
    with (
        PartWriter(str(tmp_path), tokenization) as writer,
        pytest.raises(StoreError, match="document 'd' has 3 ids and a mask of 2"),
    ):
        writer.add(
            [1, 2, 3], document_id="d", source="s", num_text_bytes=3, mask=np.array([True, False])
        )


def test_documents_without_a_mask_beside_masked_ones_are_trained_whole(tmp_path, tokenization):
    with PartWriter(str(tmp_path), tokenization) as writer:
        writer.add([1, 2, 3], document_id="a", source="s", num_text_bytes=3)
        mask = np.array([True, False, True])
        writer.add([4, 5, 6], document_id="b", source="s", num_text_bytes=3, mask=mask)
    create(str(tmp_path), tokenization, "t" * 64, writer.parts)
    out = np.ones(6, np.uint8)
    Store(str(tmp_path)).read_weights(np.array([0]), np.array([6]), np.array([0]), out)
    assert out.tolist() == [1, 1, 1, 1, 0, 1]
    assert Store(str(tmp_path)).num_targets == 3


# ------------------------------------------------------------------------------------------ groups


@pytest.fixture
def pairs(tokenization):
    return replace(tokenization, settings={"answers": "pairs"})


def add(writer, ids, **fields):
    writer.add(ids, document_id="d", source="file:7", num_text_bytes=1, **fields)


def test_a_group_is_never_divided_between_parts(tmp_path, pairs):
    with PartWriter(str(tmp_path), pairs, part_tokens=3) as writer:
        for _ in range(3):
            add(writer, [1, 2, 3, 4])
            add(writer, [5, 6], joins=True)
    assert [part.num_documents for part in writer.parts] == [2, 2, 2]
    assert [part.num_tokens for part in writer.parts] == [6, 6, 6]


def test_a_group_that_is_none_is_refused_when_it_ends(tmp_path, pairs):
    with PartWriter(str(tmp_path), pairs) as writer:
        add(writer, [1, 2])
        with pytest.raises(StoreError, match="document 'd': a pair has a chosen and a rejected"):
            add(writer, [1, 2])
        add(writer, [1, 3], joins=True)
    with pytest.raises(StoreError, match="a pair has"), PartWriter(str(tmp_path), pairs) as writer:
        add(writer, [1, 2])


def test_the_first_document_of_a_part_joins_none(tmp_path, pairs):
    with PartWriter(str(tmp_path), pairs) as writer:
        with pytest.raises(StoreError, match="'d' joins a group, and is the first"):
            add(writer, [1, 2], joins=True)
        add(writer, [1, 2])
        add(writer, [1, 3], joins=True)
        writer.finish_part()
        with pytest.raises(StoreError, match="'d' joins a group, and is the first"):
            add(writer, [1, 2], joins=True)


def test_a_kind_of_answers_that_is_not_known_is_refused(tmp_path, tokenization):
    other = replace(tokenization, settings={"answers": "triples"})
    with pytest.raises(StoreError, match="'triples' must be one of pairs, ranks, labels, steps"):
        PartWriter(str(tmp_path), other)


def test_a_store_of_answers_takes_no_documents_of_another_kind(tmp_path, pairs, tokenization):
    path = str(tmp_path)
    create(path, tokenization, "t", write_parts(tmp_path, tokenization, [[1, 2]]))
    with pytest.raises(StoreError, match="it has adds_eos=True, not None"):
        append(path, pairs, "u", [])
    with_answers = replace(tokenization, settings={**tokenization.settings, "answers": "pairs"})
    with pytest.raises(StoreError, match="it has answers=None, not 'pairs'"):
        append(path, with_answers, "u", [])
