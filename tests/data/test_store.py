import contextlib
import json
import pathlib
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest

from jaxtrain.data.metadata import StoreError, token_dtype
from jaxtrain.data.storage import open_directory
from jaxtrain.data.store import Store, read_metadata
from jaxtrain.data.writer import PartWriter, append, create

DOCUMENTS = [[1, 2, 3], [], [4], [5, 6, 7, 8, 9], [10, 11]]
TOKENS = [token for document in DOCUMENTS for token in document]


@pytest.fixture(scope="module")
def stored(tmp_path_factory, write_store):
    """The documents in two parts, the same ones on disk and in object storage."""
    local = write_store(tmp_path_factory.mktemp("store"), DOCUMENTS, part_tokens=5)
    return {"disk": local, "memory": write_store("memory://test_store/", DOCUMENTS, part_tokens=5)}


@pytest.fixture(params=["disk", "memory"])
def store(request, stored):
    return Store(stored[request.param])


@pytest.fixture
def copied(stored, tmp_path):
    """A store on disk that a test may damage."""
    return pathlib.Path(shutil.copytree(stored["disk"], tmp_path / "copy"))


def read(store, *pieces):
    """Tokens of pieces (start, length), one after another."""
    starts, lengths = np.array(pieces).T
    out = np.full(lengths.sum(), -1, np.int32)
    store.read(starts, lengths, np.cumsum(lengths) - lengths, out)
    return out.tolist()


def test_read_returns_the_tokens_written_across_parts(store):
    assert len(store.metadata.parts) == 2
    assert read(store, (0, len(TOKENS))) == TOKENS
    assert read(store, (7, 3), (0, 1), (2, 5)) == TOKENS[7:10] + TOKENS[:1] + TOKENS[2:7]


def test_read_puts_pieces_at_their_offsets_and_touches_nothing_else(store):
    out = np.full(8, -1, np.int32)
    store.read(np.array([3, 8]), np.array([2, 2]), np.array([5, 1]), out)
    assert out.tolist() == [-1, TOKENS[8], TOKENS[9], -1, -1, TOKENS[3], TOKENS[4], -1]


MASKS = [[0, 0, 1], [], [0], [1, 0, 1, 1, 0], [0, 1]]


@pytest.fixture(params=["disk", "memory"])
def masked(request, tmp_path, write_store):
    path = tmp_path / "store" if request.param == "disk" else "memory://masked_store/"
    return Store(write_store(path, DOCUMENTS, masks=MASKS, part_tokens=5))


def read_weights(store, *pieces):
    starts, lengths = np.array(pieces).T
    out = np.ones(lengths.sum(), np.float32)
    store.read_weights(starts, lengths, np.cumsum(lengths) - lengths, out)
    return out.tolist()


def test_mask_lies_beside_the_tokens(masked):
    flat = [bit for mask in MASKS for bit in mask]
    assert masked.has_mask
    assert len(masked.metadata.parts) == 2
    assert read_weights(masked, (0, len(TOKENS)), (7, 3)) == flat + flat[7:10]
    assert read(masked, (0, len(TOKENS))) == TOKENS
    assert masked.num_targets == sum(sum(mask[1:]) for mask in MASKS)


def test_store_without_a_mask_trains_everything(store):
    assert not store.has_mask
    assert read_weights(store, (2, 4)) == [1, 1, 1, 1]
    assert "mask" not in json.dumps([part.files for part in store.metadata.parts])


def test_mask_is_part_of_the_content(masked, write_store, tmp_path):
    """Its bytes are hashed and in the fingerprint; a reader of plain stores refuses it."""
    others = [[0, 1, 1], *MASKS[1:]]
    paths = [
        write_store(tmp_path / str(number), DOCUMENTS, masks=masks, part_tokens=5)
        for number, masks in enumerate((MASKS, others, None))
    ]
    found = [read_metadata(path).fingerprint for path in paths]
    assert found[0] == masked.metadata.fingerprint
    assert len(set(found)) == 3
    assert [read_metadata(path).version for path in paths] == [2, 2, 1]
    file = next((tmp_path / "0" / "parts").glob("*.mask"))
    file.write_bytes(b"\1" * len(file.read_bytes()))
    with pytest.raises(StoreError, match=f"{file.name}: its content has changed"):
        Store(paths[0])


def test_documents_keep_their_ends_ids_and_sources(store):
    assert store.document_ends.tolist() == [3, 3, 4, 9, 11]
    for number in range(len(DOCUMENTS)):
        assert store.document_name(number) == (f"doc-{number}", f"file.jsonl:{number}")


def test_metadata_counts_tokens_documents_and_text(store, tokenization):
    assert (store.num_tokens, store.num_documents, store.num_text_bytes) == (11, 5, 22)
    assert store.tokenization == tokenization
    assert store.metadata.text_sha256 == ("t" * 64,)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_token_dtype_is_the_narrowest_that_holds_every_id(
    vocab_size, dtype, make_store, tokenization
):
    assert token_dtype(vocab_size) == np.dtype(dtype)
    ids = [0, vocab_size - 1]
    path = make_store([ids], tokenization=replace(tokenization, vocab_size=vocab_size))
    assert read(Store(path), (0, 2)) == ids


def test_tokens_file_is_the_plain_little_endian_array(stored):
    (first, second) = Store(stored["disk"]).metadata.parts
    files = [pathlib.Path(stored["disk"]) / part.path("tokens") for part in (first, second)]
    assert np.concatenate([np.fromfile(file, "<u2") for file in files]).tolist() == TOKENS


def test_pickled_store_sees_the_parts_of_its_original_after_an_append(make_store, tokenization):
    path = make_store(DOCUMENTS)
    pickled = pickle.dumps(Store(path))
    with PartWriter(path, tokenization) as writer:
        writer.add([12], document_id="new", source="new", num_text_bytes=1)
    append(path, tokenization, "u" * 64, writer.parts)
    assert pickle.loads(pickled).num_tokens == 11
    assert Store(path).num_tokens == 12
    assert len(pickled) < 5_000


def test_many_parts_are_read_with_few_files_open(make_store, monkeypatch):
    monkeypatch.setattr("jaxtrain.data.storage._MAX_MAPPED", 3)
    store = Store(make_store([[i] for i in range(20)], part_tokens=1))
    assert len(store.metadata.parts) == 20
    assert read(store, (0, 20), (5, 10)) == [*range(20), *range(5, 15)]
    assert len(store._files._mapped) == 3


def test_fingerprint_is_of_the_content_and_not_of_the_place(stored, copied, write_store):
    elsewhere = write_store("memory://elsewhere/deep/", DOCUMENTS, part_tokens=5)
    fingerprints = {
        read_metadata(str(path)).fingerprint
        for path in (stored["disk"], stored["memory"], copied, elsewhere)
    }
    assert len(fingerprints) == 1


def test_fingerprint_is_the_same_from_a_relative_path(copied, stored, monkeypatch):
    monkeypatch.chdir(copied.parent)
    expected = read_metadata(stored["disk"]).fingerprint
    assert Store(copied.name).metadata.fingerprint == expected


def test_fingerprint_ignores_where_documents_came_from(make_store, tokenization, tmp_path):
    for folder in ("a", "b"):
        with PartWriter(str(tmp_path / folder), tokenization) as writer:
            writer.add([1], document_id="x", source=f"/{folder}/long/x", num_text_bytes=1)
        create(str(tmp_path / folder), tokenization, "t", writer.parts)
    one, two = (read_metadata(str(tmp_path / folder)).fingerprint for folder in ("a", "b"))
    assert one == two


@pytest.mark.parametrize(
    "change",
    [
        {"documents": [[1, 2, 3], [], [4], [5, 6, 7, 8, 9], [10, 12]]},
        {"documents": [[1, 2], [3], [4], [5, 6, 7, 8, 9], [10, 11]]},
        {"tokenizer_sha256": "b" * 64},
        {"settings": {"adds_eos": False}},
        {"special_ids": {"bos": 256, "eos": 255, "mask": 258}},
        {"vocab_size": 301},
        {"text_sha256": "u" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_fingerprint_changes_with_anything_that_decides_the_tokens(
    change, stored, make_store, tokenization
):
    change = dict(change)
    documents = change.pop("documents", DOCUMENTS)
    text = change.pop("text_sha256", "t" * 64)
    path = make_store(
        documents,
        tokenization=replace(tokenization, **change),
        text_sha256=text,
        part_tokens=5,
    )
    assert read_metadata(path).fingerprint != read_metadata(stored["disk"]).fingerprint


# ------------------------------------------------------------------------------- damaged stores


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


def part_file(path, kind):
    return sorted(path.glob(f"parts/*.{kind}"))[0]


def flip_bit(path, kind):
    file = part_file(path, kind)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return file


@pytest.fixture
def large(monkeypatch):
    """A context in which every store counts as too large to be verified when it is opened."""

    @contextlib.contextmanager
    def make():
        with monkeypatch.context() as patch:
            patch.setattr("jaxtrain.data.store.VERIFIED_BYTES", 0)
            yield

    return make


def test_missing_store_is_an_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(StoreError, match="no token store here") as error:
        Store(str(tmp_path))
    assert str(tmp_path) in one_line(error)
    assert "python -m jaxtrain.tokenize" in one_line(error)


@pytest.mark.parametrize("kind", ["tokens", "ends", "names"])
@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "shorter"),
        (lambda file: file.write_bytes(b""), "shorter"),
        (lambda file: file.write_bytes(file.read_bytes() + b"x"), "longer"),
        (pathlib.Path.unlink, "missing"),
    ],
    ids=["truncated", "emptied", "lengthened", "missing"],
)
def test_file_of_the_wrong_size_is_an_error_when_opened(copied, kind, damage, what):
    damage(part_file(copied, kind))
    with pytest.raises(StoreError, match=what) as error:
        Store(str(copied))
    assert str(part_file(copied, kind) if what != "missing" else copied) in one_line(error)
    assert "tokenize again" in one_line(error)


def test_truncated_object_in_storage_is_an_error_when_opened(write_store):
    path = write_store("memory://truncated/", DOCUMENTS)
    store = Store(path)
    part = store.metadata.parts[0]
    open_directory(path).write(part.path("tokens"), b"ab").result()
    with pytest.raises(StoreError, match="shorter than the 22 bytes"):
        Store(path)
    with pytest.raises(StoreError, match="changed after it was opened"):
        read(store, (8, 3))


@pytest.mark.parametrize("kind", ["tokens", "ends", "names"])
def test_verify_finds_one_changed_bit(copied, large, kind):
    Store(str(copied)).verify()
    file = flip_bit(copied, kind)
    with large():
        store = Store(str(copied))
    assert not store.verified
    with pytest.raises(StoreError, match="content has changed") as error:
        store.verify()
    assert str(file) in one_line(error)


@pytest.mark.parametrize("kind", ["tokens", "ends", "names"])
def test_opening_a_small_store_finds_one_changed_bit(copied, kind):
    assert Store(str(copied)).verified
    file = flip_bit(copied, kind)
    with pytest.raises(StoreError, match="content has changed") as error:
        Store(str(copied))
    assert str(file) in one_line(error)


def test_copies_of_a_store_are_not_verified_again(copied, large):
    small = Store(str(copied))
    with large():
        unverified = Store(str(copied))
    pickled = [pickle.dumps(store) for store in (small, unverified)]
    flip_bit(copied, "tokens")
    assert [pickle.loads(each).verified for each in pickled] == [True, False]


def test_document_ends_that_do_not_rise_are_an_error(copied, large):
    file = part_file(copied, "ends")
    file.write_bytes(np.full(file.stat().st_size // 8, 10, "<u8").tobytes())
    with large(), pytest.raises(StoreError, match="document ends do not rise"):
        _ = Store(str(copied)).document_ends


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a token store's metadata"),
        ("[]", "not a token store's metadata"),
        ("{}", "not a token store's metadata"),
        ('{"format": "other", "version": 1}', "its format is 'other'"),
    ],
)
def test_metadata_that_is_something_else_is_an_error(copied, text, message):
    (copied / "store.json").write_text(text)
    with pytest.raises(StoreError, match=message) as error:
        Store(str(copied))
    assert str(copied / "store.json") in one_line(error)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", 4, "format version 4, but this jaxtrain reads versions 1 to 3"),
        ("version", 3, "do not match its fingerprint"),
        ("version", 2, "do not match its fingerprint"),
        ("vocab_size", 301, "do not match its fingerprint"),
        ("parts", [], "do not match its fingerprint"),
        ("parts", [{"name": "x"}], "do not match its fingerprint"),
        ("settings", None, "do not match its fingerprint"),
    ],
)
def test_edited_metadata_is_an_error(copied, field, value, message):
    file = copied / "store.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(StoreError, match=message) as error:
        Store(str(copied))
    assert str(file) in one_line(error)


def test_unknown_kind_of_address_is_an_error():
    with pytest.raises(StoreError, match="use a path or a URL") as error:
        Store("nowhere://bucket/store")
    assert "nowhere://bucket/store" in one_line(error)


# --------------------------------------------------------------------- answers, labels and weights

PAIRS = [
    [
        {"ids": [1, 2, 3], "mask": np.array([0, 0, 1]), "value": 0.5},
        {"ids": [1, 2, 4, 5], "mask": np.array([0, 0, 1, 1])},
    ],
    [{"ids": [6, 7]}, {"ids": [6, 8]}],
    [{"ids": [9, 10], "value": 2.0}, {"ids": [9, 11]}],
]


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    return tmp_path / "answers" if request.param == "disk" else f"memory://{tmp_path.name}/"


def test_groups_and_values_come_back_across_parts(place, write_answers):
    store = Store(write_answers(place, "pairs", PAIRS, part_tokens=5))
    assert [part.num_documents for part in store.metadata.parts] == [2, 4]
    assert ["groups" in part.files for part in store.metadata.parts] == [True, True]
    assert store.answers == "pairs"
    assert store.group_ends.tolist() == [2, 4, 6]
    assert store.values.tolist() == [0.5, 0, 0, 0, 2, 0]
    assert store.values.dtype == np.float32
    assert store.document_ends.tolist() == [3, 7, 9, 11, 13, 15]
    weights = read_weights(store, (0, 15))
    assert weights == [0, 0, 1, 0, 0, 1, 1, *[1] * 8]
    assert store.num_targets == 3 + 4
    assert store.metadata.version == 3


def test_without_groups_each_document_is_its_own(place, write_answers):
    groups = [[{"ids": [1, 2], "value": value}] for value in (1.0, -1.0, 1.0)]
    store = Store(write_answers(place, "labels", groups, part_tokens=4))
    assert not any("groups" in part.files for part in store.metadata.parts)
    assert store.group_ends.tolist() == [1, 2, 3]
    assert store.values.tolist() == [1, -1, 1]


def test_labels_of_steps_lie_beside_the_tokens(place, write_answers):
    steps = [
        {"ids": [1, 2, 3], "mask": np.array([0, 1, 1]), "labels": np.array([0, 1, 0])},
        {"ids": [4, 5], "mask": np.array([1, 1]), "labels": np.array([0, 1])},
    ]
    store = Store(write_answers(place, "steps", [[each] for each in steps], part_tokens=3))
    out = np.zeros(6, np.int32)
    store.read_labels(np.array([0, 2]), np.array([3, 3]), np.array([0, 3]), out)
    assert out.tolist() == [0, 1, 0, 0, 0, 1]
    assert len(store.metadata.parts) == 2
    assert store.num_targets == 4  # the first token of a document may end a step


def test_weights_lie_beside_the_tokens_where_they_are_not_0_and_1(place, write_store):
    extras = [{"weights": np.array([0, 0.25, 2.0])}, {}, {"mask": np.array([0, 1])}, {}]
    documents = [[1, 2, 3], [4, 5], [6, 7], [8]]
    store = Store(write_store(place, documents, extras=extras, part_tokens=7))
    assert [sorted(part.files) for part in store.metadata.parts] == [
        ["ends", "names", "tokens", "weights"],
        ["ends", "names", "tokens"],
    ]
    assert store.has_mask
    assert store.answers is None
    assert read_weights(store, (0, 8)) == [0, 0.25, 2, 1, 1, 0, 1, 1]
    assert store.num_targets == 2 + 1 + 1


@pytest.mark.parametrize("kind", ["groups", "values", "mask"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_damage_to_a_store_of_answers_is_found(tmp_path, write_answers, kind, damage):
    path = pathlib.Path(write_answers(tmp_path / "store", "pairs", PAIRS))
    file = part_file(path, kind)
    if damage == "flipped":
        flip_bit(path, kind)
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    with pytest.raises(StoreError, match=f"{file.name}: ") as error:
        Store(str(path))
    assert "tokenize again" in one_line(error)


def test_groups_that_do_not_rise_to_the_documents_are_an_error(tmp_path, write_answers, large):
    path = pathlib.Path(write_answers(tmp_path / "store", "pairs", PAIRS))
    for ends in ([2, 2, 6], [2, 4, 5]):
        part_file(path, "groups").write_bytes(np.array(ends, "<u8").tobytes())
        with large(), pytest.raises(StoreError, match="groups do not rise to 6 documents"):
            _ = Store(str(path)).group_ends


def test_content_of_a_store_of_answers_is_its_fingerprint(tmp_path, write_answers):
    changed = [
        PAIRS,
        [PAIRS[0], [{"ids": [6, 7], "value": 1.0}, {"ids": [6, 8]}], PAIRS[2]],
        [PAIRS[1], PAIRS[0], PAIRS[2]],
    ]
    paths = [
        write_answers(tmp_path / str(number), "pairs", groups)
        for number, groups in enumerate(changed)
    ]
    four = [[document for group in PAIRS[:2] for document in group]]
    paths.append(write_answers(tmp_path / "four", "ranks", [*four, PAIRS[2]]))
    paths.append(write_answers(tmp_path / "two", "ranks", PAIRS))
    assert len({read_metadata(path).fingerprint for path in paths}) == 5


def test_pickled_store_of_answers_has_its_groups(place, write_answers):
    store = pickle.loads(pickle.dumps(Store(write_answers(place, "pairs", PAIRS))))
    assert (store.answers, store.group_ends.tolist()) == ("pairs", [2, 4, 6])


def test_a_store_of_answers_without_documents_is_empty(place, write_answers):
    store = Store(write_answers(place, "pairs", []))
    assert (store.num_tokens, len(store.group_ends), len(store.values)) == (0, 0, 0)
    assert store.metadata.version == 3
