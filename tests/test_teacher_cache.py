"""A teacher's likeliest ids: right at every token, found again by content, gone on with."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxtrain import teacher_cache
from jaxtrain.data.heldout import open_heldout
from jaxtrain.data.loader import Loader
from jaxtrain.data.teacher_writer import TeacherWriter
from jaxtrain.stage import Feed
from jaxtrain.teacher_cache import Listing
from jaxtrain.types import TeacherBatch
from tests.chats import VOCAB_SIZE

LISTING = Listing(4, 2.0, VOCAB_SIZE, 64, "float32")


@pytest.fixture(scope="module")
def start(stages):
    """A distillation with its teacher beside it."""
    return stages.started("distill_in_step")


@pytest.fixture
def run(start, tmp_path):
    """Runs the teacher ahead; returns the feed after."""

    def make(listing=LISTING, **data):
        config = dataclasses.replace(start.config.data, **data)
        source, heldout = Loader(config, 0), open_heldout(config, 0)
        feed = Feed(start.program, start.frozen, source, heldout)
        return teacher_cache.run_ahead("teacher", listing, tmp_path, feed)

    return make


def folders(where):
    return {path.name for path in where.glob("teacher/*")}


def contents(where):
    return {str(path): path.read_bytes() for path in sorted(where.glob("teacher/*/*"))}


@pytest.fixture(scope="module")
def expected(start):
    """Log-probabilities of all shared ids at the places of a batch, in float64 from the logits."""
    other, batch = start.program.others["teacher"], jax.device_put(start.batch())
    given = batch.inputs, batch.positions, batch.segment_ids
    logits = jax.jit(lambda tree: other.bind(tree)(*given))
    scaled = np.asarray(logits(start.frozen["teacher"]), np.float64)[..., :VOCAB_SIZE] / 2.0
    return scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))


def test_batches_bring_the_likeliest_ids_and_the_model_is_let_go(start, run, expected):
    feed = run()
    assert (dict(feed.program.others), dict(feed.frozen)) == ({}, {})
    batch = feed.source.batch(0)
    assert isinstance(batch, TeacherBatch)
    np.testing.assert_array_equal(batch.tokens.inputs, start.batch().inputs)
    real = batch.tokens.segment_ids > 0
    found = batch.teacher_logprobs[real].astype(np.float64)
    top = -np.sort(-expected[real], axis=-1)[:, : LISTING.k]
    np.testing.assert_allclose(found, top, rtol=2**-10)  # stored in float16
    of_ids = np.take_along_axis(expected[real], batch.teacher_ids[real], axis=-1)
    np.testing.assert_allclose(of_ids, top, rtol=1e-5)
    assert (batch.teacher_logprobs[~real] == -np.inf).all()
    assert isinstance(next(feed.heldout["heldout"].batches(8)), TeacherBatch)


def test_what_is_there_is_found_again_and_another_listing_has_its_own(run, tmp_path):
    run()
    before = contents(tmp_path)
    assert {name.split("-")[0] for name in folders(tmp_path)} == {"rows", "heldout"}
    run(batch_size=2)
    assert contents(tmp_path) == before
    for change in ({"k": 5}, {"temperature": 1.0}, {"num_shared": 260}, {"recipe": "bfloat16"}):
        known = folders(tmp_path)
        run(LISTING._replace(**change))
        assert len(folders(tmp_path) - known) == 2, change
    assert before.items() <= contents(tmp_path).items()


def test_a_start_that_was_killed_goes_on_where_it_stopped(run, tmp_path, monkeypatch):
    run(batch_size=2)
    whole = contents(tmp_path)
    for path in tmp_path.glob("teacher/*/*"):
        path.unlink()
    written, write = [], TeacherWriter.write

    def write_two(writer, block, *said):
        if len(written) == 2:
            raise KeyboardInterrupt
        write(writer, block, *said)
        written.append(block.first_row)

    monkeypatch.setattr("jaxtrain.data.teacher_writer._SAVED_BYTES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(TeacherWriter, "write", write_two)
        with pytest.raises(KeyboardInterrupt):
            run(batch_size=2)
    assert written == [0, 2]
    later = []

    def write_and_note(writer, block, *said):
        write(writer, block, *said)
        later.append(block.first_row)

    monkeypatch.setattr(TeacherWriter, "write", write_and_note)
    run(batch_size=2)
    assert later == [4, 6, 0, 2, 4, 6]  # the rest of the rows; all of the held-out set
    assert contents(tmp_path) == whole
