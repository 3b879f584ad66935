"""The launcher: what it refuses, what it starts from, and that its scores are those of training."""

import json

import numpy as np
import optax
import pytest

from jaxtrain import config as config_lib
from jaxtrain import reward
from jaxtrain.models.parameters import flatten
from jaxtrain.optim.build import Optimizer
from jaxtrain.run_config import RewardRun, RunConfig
from jaxtrain.stored_weights import load, named
from tests.chats import write_rows
from tests.runs import read_metrics
from tests.stage_steps import Steps, spread
from tests.stages import ROWS


@pytest.fixture(scope="module")
def trained(stages, tmp_path_factory):
    """The workdir of a reward model."""
    workdir = tmp_path_factory.mktemp("reward")
    stages.run("reward", workdir)
    return workdir


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"init__from": "None"}, "config.init.from is not set; this stage starts from a model"),
        ({"model__scalar_head": "false"}, "config.model.scalar_head=False predicts tokens; a "),
        ({"loss__centring": -1.0}, "config.loss.centring=-1.0 must be >= 0 and finite"),
        ({"loop__num_microbatches": 3}, "config.data.batch_size=8 must be a multiple of"),
    ],
)
def test_a_config_that_cannot_run_is_refused_before_anything_is_made(
    stages, tmp_path, given, message
):
    with pytest.raises(ValueError, match="config") as error:
        stages.run("reward", tmp_path / "run", **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("data", "found"), [("labels", "labels"), ("chat", "no answers")])
def test_stores_that_order_nothing_are_refused(stages, tmp_path, data, found):
    with pytest.raises(ValueError, match=rf"sources\.rows holds {found}") as error:
        stages.run("reward", tmp_path / "run", **stages.data(data))
    assert "a reward model learns from pairs or ranks or steps" in str(error.value)


def test_all_but_the_head_is_the_language_model_bit_for_bit(stages):
    start = stages.started("reward")
    params = flatten(start.state.params)
    assert "w_score_D" in params
    assert "w_head_DV" not in params
    assert np.abs(params.pop("w_score_D")).max() > 0
    base = stages.started("sft").program.abstract_state.params
    stored = flatten(load(named(str(stages.base)), base, stages.started("sft").program.axes))
    assert params.keys() == stored.keys() - {"w_head_DV"}
    for path, leaf in params.items():
        np.testing.assert_array_equal(leaf, stored[path], err_msg=path)


def test_answers_are_scored_as_in_training_and_held_out(trained, tmp_path, monkeypatch, capsys):
    """RMD-02: the mean scores of the held-out set are those of the same rows in a file."""
    given = write_rows(tmp_path / "in.jsonl", ROWS["pairs"])
    out = tmp_path / "out.jsonl"
    argv = ["reward", "--score", given, str(out), f"--workdir={trained}"]
    monkeypatch.setattr("sys.argv", argv)
    reward.main()
    assert "8 rows scored by" in capsys.readouterr().out
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [{key: row[key] for key in ROWS["pairs"][0]} for row in rows] == ROWS["pairs"]
    (eval_scores,) = [line for line in read_metrics(trained) if "eval/loss" in line]
    for which in ("chosen", "rejected"):
        mean = np.mean([row[f"score_{which}"] for row in rows])
        assert mean == pytest.approx(eval_scores[f"eval/rewards/{which}"], rel=1e-5)
    margins = np.array([row["score_chosen"] - row["score_rejected"] for row in rows])
    expected = np.mean(np.log1p(np.exp(-margins)))
    assert eval_scores["eval/loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("data", ["ranks", "steps"])
def test_lists_and_verdicts_on_steps_are_learnt_from_as_pairs_are(stages, tmp_path, data):
    start = stages.start("reward", tmp_path, **stages.data(data))
    gentle = Optimizer(optax.sgd(0.05), lambda count: np.float32(0.05), "sgd")
    steps = Steps(spread(start, num_microbatches=2, optimizer=lambda axes: gentle), start)
    first, second = (steps.step(start.batch()) for _ in range(2))
    assert first["target_weight"] == {"ranks": 8, "steps": 16}[data]
    assert 0 < second["loss"] < first["loss"]
    gap = [each["rewards/chosen"] - each["rewards/rejected"] for each in (first, second)]
    assert gap[1] > gap[0]


def test_a_language_model_gives_no_scores(stages, tmp_path, monkeypatch):
    given = write_rows(tmp_path / "in.jsonl", ROWS["pairs"])
    argv = ["reward", "--score", given, str(tmp_path / "out"), f"--workdir={stages.base}"]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(ValueError, match="is no reward model: it has no head for a score"):
        reward.main()
    assert not (tmp_path / "out").exists()


def test_config_files_are_of_the_model_that_they_start_from(root_dir, stages):
    folder = root_dir / "configs"
    tuned = config_lib.load(RunConfig, str(folder / "sft" / "tiny.py"))
    for file, model in (("tiny.py", config_lib.resolve(RunConfig, tuned).model),
                        (f"pairs.py:{stages.base}", stages.config("sft").model)):  # fmt: skip
        loaded = config_lib.load(RewardRun, str(folder / "reward" / file))
        found = config_lib.resolve(RewardRun, loaded).model
        assert found.scalar_head
        length = {"tiny.py": 256}.get(file, 2048)  # what a conversation may have, not a row
        assert config_lib.to_plain(found) == config_lib.to_plain(model) | {
            "scalar_head": True,
            "context_len": length,
        }
