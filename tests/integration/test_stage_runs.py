"""Every stage from its command line: what it learns of eight rows, and that it resumes exactly."""

import math
import shutil

import numpy as np
import pytest

from jaxtrain.train.checkpoint_read import open_leaf, read_record
from tests.runs import read_metrics
from tests.stage_steps import Steps, spread
from tests.stages import STAGES, TEACHER, save_model

NAMES = list(STAGES)
FROZEN = {"dpo_in_step": "reference", "dpo_ahead": "reference", "kto": "reference",
          "distill_in_step": "teacher", "distill_ahead": "teacher"}  # fmt: skip


@pytest.fixture(scope="module")
def straight(stages, tmp_path_factory):
    """The workdir of four steps without interruption, each on all rows, saved at 2 and 4."""
    known = {}

    def run(name):
        if name not in known:
            known[name] = tmp_path_factory.mktemp(name)
            stages.run(name, known[name])
        return known[name]

    return run


def logged(workdir, key="loss"):
    return [line[key] for line in read_metrics(workdir) if "loss" in line]


def leaves(workdir, step):
    directory = workdir / "checkpoints"
    return {
        path: open_leaf(directory, step, path).read().result()
        for path in read_record(directory, step).leaves
    }


def interrupted(workdir, to):
    """The run as it was after step 2."""
    shutil.copytree(workdir, to)
    shutil.rmtree(to / "checkpoints" / "4")
    lines = (to / "metrics.jsonl").read_text().splitlines(keepends=True)
    (to / "metrics.jsonl").write_text("".join(lines[:2]))
    return to


def made_ahead(workdir):
    """What was computed before training, and when it was written."""
    paths = [*workdir.glob("reference/*"), *workdir.glob("teacher/*/*")]
    return {path: path.stat().st_mtime_ns for path in paths}


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_falls_at_every_step_on_the_same_rows(straight, name):
    losses = logged(straight(name))
    assert len(losses) == 4
    assert (np.diff(losses) < 0).all()
    (after,) = [line["eval/loss"] for line in read_metrics(straight(name)) if "eval/loss" in line]
    assert after < losses[-1]  # held out are the same rows


@pytest.mark.parametrize("name", ["dpo_in_step", "dpo_ahead", "kto"])
def test_preference_learning_tells_chosen_from_rejected_more_and_more(straight, name):
    chosen, rejected = (
        logged(straight(name), f"rewards/{which}") for which in ("chosen", "rejected")
    )
    margins = np.subtract(chosen, rejected)
    assert margins[0] == pytest.approx(0, abs=1e-6)
    assert (np.diff(margins) > 0).all()
    assert logged(straight(name), "accuracy")[-1] > 0.9


@pytest.mark.parametrize("name", ["distill_in_step", "distill_ahead"])
def test_a_student_comes_nearer_to_its_teacher(straight, name):
    assert (np.diff(logged(straight(name), "kl")) < 0).all()


# ----------------------------------------------------------------------------------- resumption


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_bit_for_bit_with_its_frozen_model_elsewhere(
    stages, straight, tmp_path, name, capsys
):
    again = interrupted(straight(name), tmp_path / "run")
    moved = {}
    if name in FROZEN:
        given = stages.teacher if FROZEN[name] == "teacher" else stages.base
        moved = {f"{FROZEN[name]}__from": shutil.copytree(given, tmp_path / "elsewhere")}
    ahead = made_ahead(again)
    assert bool(ahead) == (STAGES[name].flags.get("teacher.runs") == "ahead" or name == "dpo_ahead")
    stages.run(name, again, **moved)
    assert "resumed at step 2" in capsys.readouterr().out
    assert made_ahead(again) == ahead
    first, second = leaves(straight(name), 4), leaves(again, 4)
    assert first.keys() == second.keys()
    assert any(path.startswith("opt_state") for path in first)
    for path, leaf in first.items():
        assert second[path].tobytes() == leaf.tobytes(), path
    assert logged(again) == logged(straight(name))


@pytest.mark.parametrize("name", FROZEN)
def test_another_frozen_model_is_refused_when_a_run_goes_on(stages, straight, tmp_path, name):
    again = interrupted(straight(name), tmp_path / "run")
    before = sorted(path.name for path in again.rglob("*"))
    shape = TEACHER if FROZEN[name] == "teacher" else {}
    other = save_model(tmp_path / "other", 5, shape=shape)
    with pytest.raises(ValueError, match="is another model than") as error:
        stages.run(name, again, **{f"{FROZEN[name]}__from": other})
    message = str(error.value)
    assert message.startswith(f"{other}@1 is another model than the one that the checkpoint was ")
    assert message.endswith("Give it back that model.")
    assert "has the fingerprint" in message
    assert "\n" not in message
    assert sorted(path.name for path in again.rglob("*")) == before


@pytest.mark.parametrize("name", ["dpo_in_step", "dpo_ahead"])
def test_a_checkpoint_says_which_reference_it_was_trained_with(stages, straight, name):
    found = read_record(straight(name) / "checkpoints", 4).metadata["frozen"]["reference"]
    assert found["where"] == f"{stages.base}@1"
    assert found["name"] == "base"
    assert len(found["fingerprints"]) == 12


# --------------------------------------------------------------------------------------- DPO-01


@pytest.mark.parametrize("name", ["dpo_in_step", "dpo_ahead"])
def test_the_first_loss_is_that_of_no_preference_though_the_model_has_dropout(
    stages, straight, name
):
    """DPO-01: with the reference beside it, and with log-probabilities of before."""
    assert stages.config(name).model.dropout == 0.1
    losses, margins = (logged(straight(name), key) for key in ("loss", "rewards/margin"))
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
    assert margins[0] == pytest.approx(0, abs=1e-6)
    assert losses[1] < losses[0] - 1e-3


@pytest.mark.parametrize("name", ["dpo_in_step", "dpo_ahead"])
def test_the_first_loss_is_that_of_no_preference_in_bfloat16(stages, tmp_path, name):
    """DPO-01."""
    start = stages.start(name, tmp_path, precision__recipe="bfloat16")
    steps = Steps(spread(start), start)
    first, second = (steps.step(start.batch()) for _ in range(2))
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-3)
    assert first["rewards/margin"] == pytest.approx(0, abs=1e-3)
    assert second["loss"] < first["loss"] - 1e-3
