import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from jaxtrain.train.checkpoint_read import read_record
from jaxtrain.train.loop import Loop, LoopConfig
from jaxtrain.train.writers import JsonLinesWriter, Terminal
from jaxtrain.types import Batch
from tests.train import stand_in
from tests.train.stand_in import HeldOut


class Source:
    """Batches by seed; the size may change at a step."""

    def __init__(self, sizes=((0, 8),), spoil=()):
        self.sizes, self.spoil, self.asked = sizes, spoil, []

    def batch_size(self, step):
        return [size for first, size in self.sizes if first <= step][-1]

    def batch_size_steps(self, num_steps):
        return [first for first, _ in self.sizes if first < num_steps]

    def describe(self, step):
        return f"seed {step}"

    def iterate(self, start, stop, rows):
        self.asked.append((start, stop))
        for step in range(start, stop):
            batch = stand_in.batch(self.batch_size(step), seed=step)
            if step in self.spoil:
                batch = batch._replace(loss_weights=np.full_like(batch.loss_weights, np.nan))
            yield Batch(*(x[rows] for x in batch))


@pytest.fixture
def make_loop(tmp_path, program):
    def make(num_steps=6, source=None, heldout=None, save_every=100, **config):
        return Loop(
            program=program,
            config=LoopConfig(num_steps=num_steps, log_every=config.pop("log_every", 1), **config),
            source=source or Source(),
            heldout=heldout or {},
            checkpoints=Checkpoints(tmp_path / "checkpoints", CheckpointConfig(keep_last=9)),
            save_every=save_every,
            writer=JsonLinesWriter(tmp_path / "metrics.jsonl", 0),
            terminal=Terminal(num_steps, 0, silent=True),
            metadata={"config_hash": "abc"},
            flops_per_token=2.0,
            peak_flops=1000.0,
        )

    return make


@pytest.fixture(scope="module")
def program():
    return stand_in.program()


def metrics(tmp_path):
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def test_loop_trains_to_the_last_step_and_writes_what_the_step_computed(
    make_loop, program, tmp_path
):
    state = make_loop().run(program.init())
    expected, history = stand_in.run(program, Source().iterate(0, 6, slice(None)))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(expected))
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in lines] == [float(each["loss"]) for each in history]
    assert [line["tokens"] for line in lines] == [step * 8 * stand_in.T for step in range(1, 7)]
    names = {"loss", "grad_norm", "lr", "tokens", "tokens_per_sec", "step_secs", "data_wait_secs"}
    assert all(names <= line.keys() for line in lines)


def test_mfu_is_tokens_per_second_times_flops_over_peak(make_loop, program, tmp_path):
    make_loop().run(program.init())
    for line in metrics(tmp_path):
        assert line["mfu"] == pytest.approx(line["tokens_per_sec"] * 2.0 / 1000.0)


def test_log_every_thins_the_lines_but_keeps_the_last(make_loop, program, tmp_path):
    make_loop(num_steps=5, log_every=2).run(program.init())
    assert [line["step"] for line in metrics(tmp_path)] == [2, 4, 5]


def test_checkpoints_are_saved_at_their_cadence_and_at_the_end(make_loop, program, tmp_path):
    make_loop(num_steps=5, save_every=2).run(program.init())
    loop = Checkpoints(tmp_path / "checkpoints", CheckpointConfig())
    assert loop.steps() == [2, 4, 5]
    record = read_record(tmp_path / "checkpoints", 4).metadata
    assert (record["position"], record["updates"], record["config_hash"]) == (4, 4, "abc")
    assert record["tokens"] == 4 * 8 * stand_in.T


def test_batch_size_ramp_counts_each_token_alike(make_loop, program, tmp_path):
    source = Source(sizes=((0, 4), (2, 8), (4, 16)))
    state = make_loop(source=source).run(program.init())
    assert source.asked == [(0, 2), (2, 4), (4, 6)]
    batches = [stand_in.batch(size, seed=n) for n, size in enumerate([4, 4, 8, 8, 16, 16])]
    expected, _ = stand_in.run(program, batches)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(expected))


def test_loop_stops_after_max_skips_in_a_row_and_names_the_numbers(make_loop, program, tmp_path):
    """PRE-09: skips do not go on for ever unseen."""
    loop = make_loop(num_steps=10, source=Source(spoil=range(3, 10)), max_skips=3)
    with pytest.raises(RuntimeError, match=r"step 6: update skipped, 3 in a row: loss nan"):
        loop.run(program.init())
    assert [line["skipped"] for line in metrics(tmp_path)] == [0, 0, 0, 1, 2, 3]


def test_several_held_out_sets_are_scored_each_and_together(make_loop, program, tmp_path):
    loop = make_loop(num_steps=2, heldout={"x": HeldOut(), "y": HeldOut()}, eval_every=1)
    loop.run(program.init())
    scores = [line for line in metrics(tmp_path) if "eval/loss" in line]
    assert [line["step"] for line in scores] == [1, 2]
    for line in scores:
        assert line["eval/loss"] == pytest.approx(line["eval/x/loss"])
        assert line["eval/target_weight"] == pytest.approx(2 * line["eval/y/target_weight"])


def test_scores_that_a_stop_left_out_are_made_at_the_start(make_loop, program, tmp_path):
    loop = make_loop(num_steps=2, heldout={"x": HeldOut()})
    loop.owes_scores = True
    loop.run(program.init())
    assert [line["step"] for line in metrics(tmp_path) if "eval/loss" in line] == [0, 2]


def test_checkpoint_of_an_evaluated_step_holds_its_scores(make_loop, program, tmp_path):
    make_loop(num_steps=2, heldout={"x": HeldOut()}, save_every=2).run(program.init())
    line = next(line for line in metrics(tmp_path) if "eval/loss" in line)
    record = read_record(tmp_path / "checkpoints", 2).metadata
    assert record["metrics"]["eval/loss"] == line["eval/loss"]


@pytest.mark.parametrize("name", ["num_steps", "num_microbatches", "log_every", "eval_every"])
def test_config_refuses_a_cadence_below_one(name):
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        LoopConfig(**{"num_steps": 1, name: 0})


class Layered(stand_in.Bigram):
    """Logs a figure of each of two layers."""

    def metrics(self):
        return {"moe/load_max": jnp.array([1.5, 3.0]), "moe/dead_experts": jnp.array([0, 2])}


def test_a_figure_of_each_layer_has_a_name_of_its_own_and_dead_experts_are_told(
    make_loop, tmp_path, monkeypatch
):
    said = []
    loop = make_loop(num_steps=1)
    loop.program = stand_in.program(make_model=lambda rng: Layered(nnx.Rngs(rng)))
    monkeypatch.setattr(loop.terminal, "say", said.append)
    with loop.checkpoints:
        loop.run(loop.program.init())
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert (row["moe/load_max/00"], row["moe/load_max/01"]) == (1.5, 3.0)
    (line,) = [text for text in said if "without a token" in text]
    assert line.startswith("step 1: experts without a token: 2 in moe/dead_experts/01; raise")
