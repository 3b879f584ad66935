"""The launcher: what it refuses, and what a run is given."""

import jax
import numpy as np
import pytest

from jaxtrain import config as config_lib
from jaxtrain.run_config import DistillRun
from jaxtrain.tokenizer.training import Training
from jaxtrain.types import Batch, TeacherBatch
from tests.chats import VOCAB_SIZE
from tests.stage_steps import Steps, spread
from tests.stages import save_model


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"teacher__from": "None"}, "config.teacher.from is not set; name the model to learn from"),
        ({"teacher__runs": "ahead"}, "config.teacher.runs='ahead' keeps the teacher's likeliest"),
        (
            {"teacher__runs": "ahead", "loss__top_k": 4, "loss__hidden_weight": 0.1},
            "config.loss.hidden_weight=0.1 needs the teacher's hidden states; set config.teacher",
        ),
        ({"loss__temperature": 0.0}, "config.loss.temperature=0.0 must be above 0 and finite"),
        ({"init__from": "x", "init__load": "state"}, "config.init.load=state would go on with the"),
        (
            {"teacher__runs": "ahead", "loss__top_k": VOCAB_SIZE + 1},
            f"config.loss.top_k={VOCAB_SIZE + 1} must be at most {VOCAB_SIZE}, the ids of the",
        ),
        (
            {"teacher__from": "nowhere"},
            "config.teacher.from: nowhere is neither the directory of a",
        ),
        ({"teacher__recipe": "float7"}, "config.teacher.recipe='float7' must be one of"),
        ({"data__packing": "concat"}, "config.data.packing='concat'"),
    ],
)
def test_a_config_that_cannot_run_is_refused_before_anything_is_made(
    stages, tmp_path, given, message
):
    with pytest.raises(ValueError, match="config") as error:
        stages.run("distill_in_step", tmp_path / "run", **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_store_of_answers_is_refused(stages, tmp_path):
    with pytest.raises(ValueError, match=r"sources\.rows holds answers to compare \(pairs\)"):
        stages.run("distill_in_step", tmp_path / "run", **stages.data("pairs"))


def test_a_teacher_with_another_tokenizer_is_refused_by_its_first_token(stages, tmp_path):
    """DST-06."""
    teacher = save_model(tmp_path / "teacher", 0, shape={"model.vocab_size": str(VOCAB_SIZE + 1)})
    for file in teacher.glob("tokenizer*"):
        file.unlink()
    Training("bpe", VOCAB_SIZE + 1, 8).train(["abab abab"]).save(teacher)
    with pytest.raises(ValueError, match="another tokenizer than the data: id 256 is") as error:
        stages.run("distill_in_step", tmp_path / "run", teacher__from=teacher)
    assert "in one, 'ab' in the other; a teacher and its student" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_models_padded_to_different_sizes_are_compared_on_the_ids_of_the_tokenizer(
    stages, tmp_path
):
    """DST-06: against both models' logits, normalised over these ids, in float64."""
    wide = VOCAB_SIZE + 20
    start = stages.start(
        "distill_in_step", tmp_path, init__from=stages.base, model__vocab_size=VOCAB_SIZE,
        teacher__from=save_model(tmp_path / "teacher", 3, shape={"model.vocab_size": str(wide)}),
    )  # fmt: skip
    batch, teacher = start.batch(), start.program.others["teacher"]
    assert teacher.config.vocab_size == wide
    steps = Steps(spread(start), start)
    found = steps.sums(batch)
    given = jax.device_put((batch.inputs, batch.positions, batch.segment_ids))
    logprobs = []
    models = (teacher.bind(start.frozen["teacher"]),
              start.program.bind(start.state.params, {}, start.frozen)[0])  # fmt: skip
    for model in models:
        scaled = np.asarray(model(*given), np.float64)[..., :VOCAB_SIZE] / 2.0  # the temperature
        logprobs.append(scaled - np.log(np.exp(scaled).sum(-1, keepdims=True)))
    kl = (np.exp(logprobs[0]) * (logprobs[0] - logprobs[1])).sum(-1)
    expected = (kl * batch.loss_weights).sum()
    assert found["kl"] == pytest.approx(expected, rel=1e-5)
    assert found["loss"] == pytest.approx(0.1 * found["nll"] + 0.9 * 4 * expected, rel=1e-5)


def test_the_teacher_is_beside_the_student_or_has_said_all_before(stages):
    in_step, ahead = (stages.started(f"distill_{when}") for when in ("in_step", "ahead"))
    assert set(in_step.program.others) == set(in_step.frozen) == {"teacher"}
    assert isinstance(in_step.batch(), Batch)
    assert (dict(ahead.program.others), dict(ahead.frozen)) == ({}, {})
    assert isinstance(ahead.batch(), TeacherBatch)
    assert ahead.batch().teacher_ids.shape[-1] == 8
    for start in (in_step, ahead):
        frozen = start.loop.metadata["frozen"]["teacher"]
        assert frozen["where"] == f"{stages.teacher}@1"


def test_a_teacher_may_have_another_precision_and_lie_otherwise(stages, tmp_path):
    start = stages.start(
        "distill_in_step", tmp_path, teacher__recipe="bfloat16", teacher__sharding="zero1"
    )
    assert start.program.others["teacher"].sharding == "zero1"
    assert start.frozen["teacher"]["w_head_DV"].dtype == "bfloat16"
    assert start.state.params["w_head_DV"].dtype == "float32"


def test_the_config_file_is_of_a_student_of_the_quickstarts_vocabulary(root_dir):
    file = root_dir / "configs" / "distill" / "tiny.py"
    config = config_lib.resolve(DistillRun, config_lib.load(DistillRun, str(file)))
    assert config.model.vocab_size == 4096
    assert config.teacher.from_ == "runs/quickstart/dpo"
