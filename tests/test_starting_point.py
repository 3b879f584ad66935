"""Where runs start from: branches of WSD runs and parameters of other runs."""

import json

import jax
import numpy as np
import pytest

from jaxtrain.train.checkpoint_read import open_leaf, read_record
from tests.runs import Launcher, read_metrics

WSD = ["--config.optim.schedule=wsd", "--config.optim.decay_steps=5"]


@pytest.fixture(scope="module")
def trunk(tmp_path_factory, tiny_flags):
    """A WSD run of 15 steps: stable to 10, decayed from there; checkpoints at 5, 10, 15."""
    workdir = tmp_path_factory.mktemp("trunk")
    Launcher(tiny_flags).run(
        f"--workdir={workdir}", *WSD, "--config.loop.num_steps=15",
        "--config.checkpoint.save_every=5",
    )  # fmt: skip
    return workdir


def lrs(workdir):
    return {line["step"]: line["lr"] for line in read_metrics(workdir) if "lr" in line}


def test_a_branch_from_the_stable_phase_decays_from_there(trunk, launcher, tmp_path):
    out = launcher.run(
        f"--workdir={tmp_path}", *WSD, "--config.loop.num_steps=10",
        f"--config.init.from={trunk}@5",
    )  # fmt: skip
    assert f"branched from {trunk}@5 (step 5)" in out
    whole, branch = lrs(trunk), lrs(tmp_path)
    assert list(branch) == [6, 7, 8, 9, 10]
    # Steps 6-10 of the branch have the rates of steps 11-15 of the trunk: the same decay, earlier.
    np.testing.assert_allclose(list(branch.values()), [whole[step + 5] for step in branch])
    # The branch's first step sees the trunk's data, moments and dropout: the same loss.
    losses = [
        {line["step"]: line["loss"] for line in read_metrics(w) if "loss" in line}
        for w in (trunk, tmp_path)
    ]
    assert losses[0][6] == losses[1][6]
    assert read_record(tmp_path / "checkpoints", 10).metadata["num_branched_updates"] == 5


def test_a_branch_from_inside_its_own_decay_is_refused(trunk, launcher, tmp_path):
    out = launcher.run(
        f"--workdir={tmp_path / 'run'}", *WSD, "--config.loop.num_steps=13",
        f"--config.init.from={trunk}@10", fails=True,
    )  # fmt: skip
    assert "error: config.optim." in out
    assert not (tmp_path / "run").exists()


def test_load_params_takes_weights_and_nothing_else(trunk, launcher, tmp_path):
    out = launcher.run(
        f"--workdir={tmp_path}", f"--config.init.from={trunk}@10", "--config.init.load=params",
        "--config.loop.num_steps=3", "--config.optim.lr=1e-30", "--config.optim.warmup_steps=0",
    )  # fmt: skip
    assert "everything else new" in out
    steps = [line["step"] for line in read_metrics(tmp_path) if "loss" in line]
    assert steps == [1, 2, 3]
    path = "params.blocks.ffn.w_up_DF"
    before, after = (
        open_leaf(where / "checkpoints", step, path).read().result()
        for where, step in ((trunk, 10), (tmp_path, 3))
    )
    np.testing.assert_array_equal(before, after)  # at a rate of 1e-30 nothing moves


def test_own_checkpoints_win_over_init_from(trunk, launcher, tmp_path):
    flags = [f"--workdir={tmp_path}", *WSD, f"--config.init.from={trunk}@5"]
    launcher.run(*flags, "--config.loop.num_steps=10")
    out = launcher.run(*flags, "--config.loop.num_steps=10")
    assert "resumed at step 10" in out
    assert json.loads((tmp_path / "config.json").read_text())["init"]["from"] == f"{trunk}@5"


def test_a_finished_run_started_with_fewer_steps_is_refused(trunk, launcher):
    out = launcher.run(f"--workdir={trunk}", *WSD, "--config.loop.num_steps=12", fails=True)
    assert "config.loop.num_steps=12 must be at least 15" in out
    assert jax.tree.leaves(lrs(trunk))  # its metrics are still there
