import json
import pathlib
import pickle
import shutil

import numpy as np
import pytest

from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.heldout import open_heldout
from jaxtrain.data.loader import Loader
from jaxtrain.data.metadata import StoreError
from jaxtrain.data.plan_rows import plan_rows
from jaxtrain.data.sources import Source
from jaxtrain.data.storage import open_directory
from jaxtrain.data.store import Store
from jaxtrain.data.teacher import LOGPROB_DTYPE, Rows, TeacherStore
from jaxtrain.data.teacher_writer import TeacherWriter
from jaxtrain.types import Batch, TeacherBatch
from tests.data.naive_answers import make_groups

K = 2
LENGTHS = [5, 1, 6, 0, 3, 6, 4, 2, 2]


def entries(tokens):
    """What the teacher says after each token of the vocabulary; a token is one place of a store."""
    ids = np.stack([(tokens * 3) % 300, (tokens * 5 + 1) % 300], axis=-1)
    return ids, -np.stack([tokens / 4 + 0.5, tokens / 2 + 1], axis=-1)


@pytest.fixture(scope="module")
def stores(tmp_path_factory, write_store, numbered_documents):
    """Two stores whose tokens are all different, in several parts."""
    folder = tmp_path_factory.mktemp("stores")
    return {
        name: write_store(folder / name, numbered_documents(LENGTHS, first), part_tokens=8)
        for name, first in (("a", 0), ("b", 100))
    }


@pytest.fixture(scope="module")
def teach(tmp_path_factory, stores):
    """Writes what the teacher says of a store, seen in such rows."""

    def make(name="a", packing="best_fit", seq_len=6, k=K):
        source = Source(name, Store(stores[name]), DataConfig(seq_len=seq_len, packing=packing), 0)
        path = str(tmp_path_factory.mktemp("teacher"))
        writer = TeacherWriter(path, source, k=k, settings={"temperature": 1.0})
        for block in plan_rows(source, 3):
            ids, logprobs = entries(block.batch.inputs)
            writer.write(block, ids[..., :k], logprobs[..., :k])
        writer.finish()
        return path

    return make


@pytest.fixture(scope="module")
def taught(teach):
    return {name: teach(name) for name in ("a", "b")}


def make_config(stores, **settings):
    given = {"packing": "best_fit", "seq_len": 6, "batch_size": 3}
    return DataConfig(
        {name: SourceConfig(path) for name, path in stores.items()}, **(given | settings)
    )


def assert_taught(batch):
    """Each input has its own entry, filler has none."""
    assert type(batch) is TeacherBatch
    assert type(batch.tokens) is Batch
    assert (batch.teacher_ids.dtype, batch.teacher_logprobs.dtype) == (np.int32, np.float16)
    real = batch.tokens.segment_ids > 0
    ids, logprobs = entries(batch.tokens.inputs)
    np.testing.assert_array_equal(batch.teacher_ids[real], ids[real])
    np.testing.assert_array_equal(batch.teacher_logprobs[real], logprobs[real].astype(np.float16))
    assert np.isneginf(batch.teacher_logprobs[~real]).all()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_each_input_has_its_entry_whatever_rows_and_workers(stores, taught, num_workers):
    teachers = {name: TeacherStore(path) for name, path in taught.items()}
    loader = Loader(make_config(stores, num_workers=num_workers), 0, teachers=teachers)
    plain = Loader(make_config(stores), 0)
    for step, batch in enumerate(loader.iterate(0, 8)):
        assert_taught(batch)
        for one, other in zip(batch.tokens, plain.batch(step), strict=True):
            np.testing.assert_array_equal(one, other)
    part = loader.batch(2, slice(1, 3))
    np.testing.assert_array_equal(part.teacher_ids, loader.batch(2).teacher_ids[1:3])


def test_held_out_sets_are_taught_too(stores, taught):
    config = make_config({}, eval_sources={"held": SourceConfig(stores["a"])})
    heldout = open_heldout(config, 0, teachers={"held": TeacherStore(taught["a"])})["held"]
    batches = list(heldout.batches(4))
    for batch in batches:
        assert_taught(batch)
    assert sum((batch.tokens.segment_ids > 0).sum() for batch in batches) == sum(LENGTHS)
    later = open_heldout(config, 0)["held"].with_teachers({"held": TeacherStore(taught["a"])})
    for batch in later.batches(4):
        assert_taught(batch)


def test_teachers_can_be_given_once_they_are_known(stores, taught):
    loader = Loader(make_config(stores), 0)
    teachers = {name: TeacherStore(path) for name, path in taught.items()}
    assert_taught(loader.with_teachers(teachers).batch(1))
    assert type(loader.batch(1)) is Batch


def test_an_empty_source_needs_no_teacher(stores, taught, make_store):
    config = make_config({"a": stores["a"], "void": make_store([])})
    assert_taught(Loader(config, 0, teachers={"a": TeacherStore(taught["a"])}).batch(0))


def test_entries_are_read_from_object_storage(stores, taught):
    for file in pathlib.Path(taught["a"]).iterdir():
        open_directory("memory://taught/").write(file.name, file.read_bytes()).result()
    teacher = TeacherStore("memory://taught/")
    loader = Loader(make_config({"a": stores["a"]}), 0, teachers={"a": teacher})
    assert_taught(pickle.loads(pickle.dumps(loader)).batch(1))


def test_whole_documents_have_one_context_in_any_rows(stores, taught):
    """Rows of 9 hold other documents together, and each of them as it was."""
    teachers = {"a": TeacherStore(taught["a"])}
    assert_taught(Loader(make_config({"a": stores["a"]}, seq_len=9), 0, teachers=teachers).batch(0))


@pytest.mark.parametrize(
    ("made", "served"),
    [
        (("best_fit", 6), ("best_fit", 5)),  # cut
        (("best_fit", 5), ("best_fit", 6)),
        (("best_fit", 6), ("concat", 6)),
        (("concat", 6), ("best_fit", 6)),
        (("concat", 6), ("concat", 7)),
    ],
)
def test_tokens_seen_in_another_context_are_refused(stores, teach, made, served):
    teachers = {"a": TeacherStore(teach("a", *made))}
    config = make_config({"a": stores["a"]}, packing=served[0], seq_len=served[1])
    message = rf"made in rows of packing='{made[0]}', seq_len={made[1]}, where tokens have another"
    with pytest.raises(ValueError, match=message):
        Loader(config, 0, teachers=teachers)


def test_the_same_cut_rows_are_the_same_context(stores, teach):
    teachers = {"a": TeacherStore(teach("a", "concat", 6))}
    loader = Loader(make_config({"a": stores["a"]}, packing="concat"), 0, teachers=teachers)
    assert_taught(loader.batch(0))


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        (Rows("best_fit", 8, True), Rows("concat_isolated", 64, True), True),
        (Rows("best_fit", 8, True), Rows("best_fit", 4, False), False),
        (Rows("concat", 8, False), Rows("concat", 8, False), True),
        (Rows("concat", 8, False), Rows("concat_isolated", 8, False), False),
    ],
)
def test_rows_agree_where_every_token_has_the_same_context(one, other, agree):
    assert one.agree(other) == other.agree(one) == agree


def test_the_output_of_another_store_is_refused(stores, taught):
    teachers = {"a": TeacherStore(taught["b"])}
    with pytest.raises(ValueError, match=r"what a teacher said of another store") as error:
        Loader(make_config({"a": stores["a"]}), 0, teachers=teachers)
    assert taught["b"] in str(error.value)
    assert stores["a"] in str(error.value)


def test_teachers_must_be_of_every_source_and_alike(stores, taught, teach):
    with pytest.raises(ValueError, match="teachers has none of b"):
        Loader(make_config(stores), 0, teachers={"a": TeacherStore(taught["a"])})
    teachers = {"a": TeacherStore(taught["a"]), "b": TeacherStore(teach("b", k=1))}
    with pytest.raises(ValueError, match=r"different numbers of ids per token, {'a': 2, 'b': 1}"):
        Loader(make_config(stores), 0, teachers=teachers)


def test_a_teacher_of_answers_or_of_masked_lm_is_refused(stores, taught, write_answers, tmp_path):
    teachers = {"a": TeacherStore(taught["a"])}
    path = write_answers(tmp_path / "pairs", "pairs", make_groups("pairs", [(3, 3)]))
    with pytest.raises(ValueError, match="is a store of answers; give one of text"):
        Loader(make_config({"a": path}), 0, teachers=teachers)
    with pytest.raises(ValueError, match="objective='masked_lm'; set next_token"):
        Loader(make_config({"a": stores["a"]}, objective="masked_lm"), 0, teachers=teachers)


@pytest.mark.parametrize("name", ["teacher.ids", "teacher.logprobs", "teacher.json"])
@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_damage_is_found_when_opened(taught, tmp_path, name, damage):
    file = pathlib.Path(shutil.copytree(taught["a"], tmp_path / "copy")) / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "shorter":
        file.write_bytes(content[:-1] if name != "teacher.json" else content[:-9])
    else:
        file.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(StoreError) as error:
        TeacherStore(str(tmp_path / "copy"))
    assert str(tmp_path / "copy") in str(error.value)
    assert "\n" not in str(error.value)


def test_metadata_that_was_edited_is_refused(taught, tmp_path):
    file = pathlib.Path(shutil.copytree(taught["a"], tmp_path / "copy")) / "teacher.json"
    value = json.loads(file.read_text())
    for edit in ({"k": 1}, {"version": 2}, {"rows": {"packing": "concat"}}, {"settings": {}}):
        file.write_text(json.dumps({**value, **edit}))
        with pytest.raises(StoreError, match="not the metadata of a teacher's output"):
            TeacherStore(str(tmp_path / "copy"))


def divergence(logs, approximation):
    """KL divergence in nats of each distribution from one that is normalised here."""
    approximation = approximation.astype(np.float64)
    approximation -= np.log(np.exp(approximation).sum(-1, keepdims=True))
    return (np.exp(logs) * (logs - approximation)).sum(-1)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_float16_is_enough_for_log_probabilities(temperature):
    """All of a distribution stored so is nearer to the exact one than from bfloat16 logits."""
    logits = (np.random.default_rng(0).normal(size=(200, 1000)) / temperature).astype(np.float32)
    logs = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    stored = divergence(logs, logs.astype(LOGPROB_DTYPE))
    bits = (logits.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
    from_bfloat16 = divergence(logs, bits.view(np.float32))
    assert stored.max() < 1e-6
    assert stored.mean() < 0.5 * from_bfloat16.mean()
