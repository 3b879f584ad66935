"""The launcher: what it refuses, and what a run is given."""

import dataclasses

import pytest

from jaxtrain import config as config_lib
from jaxtrain.run_config import PreferenceRun, RunConfig
from jaxtrain.tokenizer.training import Training
from tests.chats import VOCAB_SIZE
from tests.stages import save_model


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"init__from": "None"}, "config.init.from is not set; this stage starts from a model"),
        ({"init__load": "state"}, "config.init.load=state would go on with the schedule"),
        ({"loss__kind": "kto"}, "sources.rows holds pairs, but config.loss.kind=kto learns from "),
        ({"reference__from": "x", "loss__kind": "simpo"}, "config.reference.from='x' has no use"),
        ({"reference__from": "nowhere"}, "nowhere is neither the directory of a Hugging Face"),
        ({"data__packing": "concat"}, "config.data.packing='concat'"),
        ({"data__seq_len": 20}, "config.data.seq_len=20"),
        ({"loss__beta": 0.0}, "config.loss.beta=0.0 must be > 0"),
    ],
)
def test_a_config_that_cannot_run_is_refused_before_anything_is_made(
    stages, tmp_path, given, message
):
    with pytest.raises(ValueError, match=r"model|config") as error:
        stages.run("dpo_ahead", tmp_path / "run", **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("data", ["chat", "text"])
def test_stores_without_answers_are_refused(stages, tmp_path, data):
    with pytest.raises(ValueError, match="rows holds no answers to compare, but") as error:
        stages.run("dpo_ahead", tmp_path / "run", **stages.data(data))
    assert "python -m jaxtrain.tokenize answers" in str(error.value)


@pytest.mark.parametrize("key", ["init__from", "reference__from"])
def test_a_reward_model_is_neither_policy_nor_reference(stages, tmp_path, key):
    scorer = save_model(tmp_path / "scorer", 0, shape={"model.scalar_head": "true"})
    with pytest.raises(ValueError, match="is a reward model, which predicts no tokens; ") as error:
        stages.run("dpo_ahead", tmp_path / "run", **{key: scorer})
    assert f"{scorer}@1" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_reference_with_another_tokenizer_is_refused(stages, tmp_path):
    other = save_model(tmp_path / "other", 0, shape={"model.vocab_size": str(VOCAB_SIZE + 1)})
    for file in other.glob("tokenizer*"):
        file.unlink()
    Training("bpe", VOCAB_SIZE + 1, 8).train(["abab abab"]).save(other)
    with pytest.raises(ValueError, match=r"^config.reference.from=.* has another tokenizer than"):
        stages.run("dpo_ahead", tmp_path / "run", reference__from=other)
    assert not (tmp_path / "run").exists()


def test_a_loss_without_a_reference_has_none(stages, tmp_path):
    start = stages.start("dpo_ahead", tmp_path, loss__kind="simpo")
    assert (dict(start.program.others), dict(start.frozen)) == ({}, {})
    assert not (tmp_path / "reference").exists()
    assert not start.batch().reference.any()


def test_a_reference_that_is_another_model_is_the_one_that_is_named(stages, tmp_path):
    start = stages.start("dpo_in_step", tmp_path, reference__from=stages.teacher)
    assert start.program.others["reference"].config.d_model == 24
    assert start.loop.metadata["frozen"]["reference"]["where"] == f"{stages.teacher}@1"


def test_the_workdir_says_which_reference_there_is(stages):
    start = stages.started("dpo_in_step")
    report = (start.workdir / "run.json").read_text()
    assert f"11,184 parameters, frozen, held in float32 as zero3: {stages.base}@1" in report


def test_config_files_are_of_the_model_that_they_start_from(root_dir, stages):
    folder = root_dir / "configs"
    tuned = config_lib.load(RunConfig, str(folder / "sft" / "tiny.py"))
    for file, model in (("tiny.py", config_lib.resolve(RunConfig, tuned).model),
                        (f"pairs.py:{stages.base}", stages.config("sft").model)):  # fmt: skip
        loaded = config_lib.load(PreferenceRun, str(folder / "dpo" / file))
        config = config_lib.resolve(PreferenceRun, loaded)
        length = {"tiny.py": 256}.get(file, 2048)  # what a conversation may have, not a row
        assert config.model == dataclasses.replace(model, context_len=length)
        assert (config.init.load, config.data.packing) == ("params", "best_fit")
    with pytest.raises(ValueError, match="name the model behind a colon"):
        config_lib.load(PreferenceRun, str(folder / "dpo" / "pairs.py"))
