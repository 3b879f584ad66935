"""A reference's log-probabilities: right for every answer, and found again by content alone."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import reference_cache
from jaxtrain.data.heldout import open_heldout
from jaxtrain.data.loader import Loader
from jaxtrain.stage import Feed


@pytest.fixture(scope="module")
def start(stages):
    """A run of DPO with its reference beside it."""
    return stages.started("dpo_in_step")


@pytest.fixture
def run(start, tmp_path):
    """Runs the reference ahead; returns the feed after."""

    def make(recipe="float32", frozen=None, data=None, **shape):
        data, other = data or start.config.data, start.program.others["reference"]
        other = dataclasses.replace(other, config=dataclasses.replace(other.config, **shape))
        program = dataclasses.replace(start.program, others={"reference": other})
        source, heldout = Loader(data, 0), open_heldout(data, 0)
        feed = Feed(program, frozen or start.frozen, source, heldout)
        return reference_cache.run_ahead("reference", 64, recipe, tmp_path, feed)

    return make


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("reference/*")}


def read(store):
    """(ids, weights) of every document."""
    whole = [np.array([number], np.int64) for number in (0, store.num_tokens, 0)]
    ids, weights = np.empty(store.num_tokens, store.dtype), np.ones(store.num_tokens, np.float32)
    store.read(*whole, ids)
    store.read_weights(*whole, weights)
    ends = store.document_ends[:-1]
    return zip(np.split(ids, ends), np.split(weights, ends), strict=True)


def expected_logprobs(start):
    """One document at a time through the whole logits, in float64 from there."""
    other = start.program.others["reference"]
    (source,) = start.loop.source.sources
    documents = list(read(source.store))
    length = max(len(ids) for ids, _ in documents)
    padded = np.array([[*ids.tolist(), *[0] * (length - len(ids))] for ids, _ in documents])
    positions = np.broadcast_to(np.arange(length), padded.shape)

    @jax.jit
    def forward(tree):
        return other.bind(tree)(jnp.asarray(padded, "int32"), jnp.asarray(positions, "int32"))

    logits = np.asarray(forward(start.frozen["reference"]), np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = []
    for number, (ids, weights) in enumerate(documents):
        of_next = logprobs[number, np.arange(len(ids) - 1), ids[1:]]
        found.append((of_next * weights[1:]).sum())
    return np.array(found)


def test_what_is_kept_is_the_log_probability_of_each_answer(start, run, tmp_path):
    run()
    (path,) = tmp_path.glob("reference/rows-*.npy")
    kept = np.load(path)
    assert kept.dtype == np.float32
    np.testing.assert_allclose(kept, expected_logprobs(start), rtol=1e-5)


def test_batches_bring_it_and_the_model_is_let_go(start, run, tmp_path):
    feed = run()
    assert (dict(feed.program.others), dict(feed.frozen)) == ({}, {})
    kept = np.load(next(tmp_path.glob("reference/rows-*.npy")))
    for batch in (feed.source.batch(0), next(feed.heldout["heldout"].batches(8))):
        assert sorted(batch.reference[batch.group_ids > 0]) == pytest.approx(sorted(kept))
        assert not batch.reference[batch.group_ids == 0].any()


def test_what_is_there_is_found_again_whatever_the_rows(start, run, tmp_path, capsys):
    """The held-out set is the same store here, and so is found by the name of its source alone."""
    run()
    before = files(tmp_path)
    assert {name.split("-")[0] for name in before} == {"rows", "heldout"}
    assert "reference: ran over 16 answers of rows in" in capsys.readouterr().out
    run(data=dataclasses.replace(start.config.data, seq_len=96, batch_size=2))
    assert "ran over" not in capsys.readouterr().out
    assert files(tmp_path) == before


def test_rows_and_batches_of_another_size_give_the_same(start, run, tmp_path):
    run()
    first = np.load(next(tmp_path.glob("reference/rows-*.npy")))
    shutil.rmtree(tmp_path / "reference")
    run(data=dataclasses.replace(start.config.data, seq_len=96, batch_size=2))
    again = np.load(next(tmp_path.glob("reference/rows-*.npy")))
    np.testing.assert_allclose(again, first, rtol=1e-5)


def test_another_reference_or_precision_has_files_of_its_own(start, run, tmp_path):
    run()
    before = files(tmp_path)
    run(recipe="bfloat16")
    other = {"reference": jax.tree.map(lambda leaf: leaf * 1.5, start.frozen["reference"])}
    run(frozen=other)
    run(norm_eps=1e-2)  # the same weights in another model
    after = files(tmp_path)
    assert len(after) == 4 * len(before)
    assert before.items() <= after.items()


def test_a_damaged_file_is_named(run, tmp_path):
    """Also one whose numbers alone have changed, and that numpy reads as if nothing were amiss."""
    run()
    path = next(tmp_path.glob("reference/rows-*.npy"))
    whole = path.read_bytes()
    last = len(whole) - 33  # a byte of the last number
    other = whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :]
    for content in (b"", whole[:40], whole[:-1], whole + b"x", other):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"rows-\w+\.npy is damaged; delete it, and"):
            run()
    path.unlink()
    run()
    assert path.read_bytes() == whole


def test_a_reference_that_is_out_of_order_is_refused_and_nothing_is_kept(start, run, tmp_path):
    broken = {"reference": jax.tree.map(lambda leaf: leaf * np.nan, start.frozen["reference"])}
    with pytest.raises(
        ValueError, match=r"^the reference gives answer 0 of .*-probability nan; its "
    ):
        run(frozen=broken)
    assert files(tmp_path) == {}
