"""The trees of stages after pre-training: what each has beyond that of pre-training, and checks."""

import dataclasses

import pytest

from jaxtrain import config as config_lib
from jaxtrain import run_config
from jaxtrain.losses.xent import XentConfig
from jaxtrain.run_config import DistillRun, PreferenceRun, RewardRun, RunConfig

KEYS = {
    PreferenceRun: [
        "loss.beta",
        "loss.chunk_tokens",
        "loss.desirable_weight",
        "loss.divergence",
        "loss.divergence_alpha",
        "loss.gamma",
        "loss.kind",
        "loss.label_smoothing",
        "loss.length_normalised",
        "loss.nll_weight",
        "loss.undesirable_weight",
        "reference.from",
        "reference.runs",
    ],
    RewardRun: ["loss.centring", "loss.margin_scale"],
    DistillRun: [
        "loss.alpha",
        "loss.beta",
        "loss.chunk_tokens",
        "loss.divergence",
        "loss.hidden_distance",
        "loss.hidden_weight",
        "loss.rest",
        "loss.temperature",
        "loss.top_k",
        "teacher.from",
        "teacher.recipe",
        "teacher.runs",
        "teacher.sharding",
    ],
}
RESUMABLE = {"loss.chunk_tokens", "reference.from", "teacher.from", "teacher.sharding"}
NAMES = {"dpo_ahead": PreferenceRun, "reward": RewardRun, "distill_in_step": DistillRun}


def knobs_of_its_own(tree):
    """Those of another section `loss` than pre-training's, and of sections that it lacks."""
    shared = {knob.path for knob in config_lib.knobs(RunConfig)}
    shared = {path for path in shared if not path.startswith("loss.")}
    return [knob for knob in config_lib.knobs(tree) if knob.path not in shared]


@pytest.mark.parametrize("tree", KEYS, ids=lambda tree: tree.__name__)
def test_every_key_of_a_stage_is_listed_here_and_documented(tree):
    """The tree stays small: a new key is a decision, made here too."""
    found = knobs_of_its_own(tree)
    assert sorted(knob.path for knob in found) == KEYS[tree]
    assert [knob.path for knob in found if len(knob.doc) < 10] == []
    assert {knob.path for knob in found if knob.resumable} == RESUMABLE & set(KEYS[tree])
    everything = {knob.path for knob in config_lib.knobs(tree)}
    assert {"model.d_model", "lora.rank", "mesh.fsdp", "optim.name"} <= everything


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("dpo_ahead", {"loss__kind": "dpoo"}, "config.loss.kind='dpoo' must be one of dpo, robust"),
        (
            "dpo_ahead",
            {"loss__kind": "orpo", "reference__from": "x"},
            "config.reference.from='x' has no use: config.loss.kind='orpo' compares with no "
            "reference; leave it out.",
        ),
        ("dpo_ahead", {"reference__runs": "later"}, "config.reference.runs='later' must be one of"),
        ("dpo_ahead", {"teacher__from": "x"}, "config.teacher is not a known key"),
        (
            "dpo_ahead",
            {"precision__recipe": "fp8", "precision__grad_rounding": "stochastic"},
            "config.precision.grad_rounding='stochastic' draws from a key, and preference losses "
            "compute without one",
        ),
        (
            "dpo_ahead",
            {"model__num_mtp_layers": 1},
            "config.model.mtp_weight=0.3 has no use: this stage's loss trains no modules",
        ),
        (
            "distill_in_step",
            {"model__num_mtp_layers": 1, "model__mtp_weight": 0.1},
            "config.model.mtp_weight=0.1 has no use: this stage's loss trains no modules",
        ),
        ("reward", {"model__scalar_head": "false"}, "set config.model.scalar_head=True."),
        ("reward", {"loss__margin_scale": -1.0}, "config.loss.margin_scale=-1.0 must be >= 0"),
        ("reward", {"lora__rank": 2, "init__from": "None"}, "config.lora.rank=2 adapts a model"),
        ("distill_in_step", {"teacher__from": "None"}, "config.teacher.from is not set; name the"),
        (
            "distill_in_step",
            {"teacher__runs": "ahead"},
            "config.teacher.runs='ahead' keeps the teacher's likeliest ids; say how many with "
            "config.loss.top_k.",
        ),
        (
            "distill_in_step",
            {"teacher__runs": "ahead", "loss__top_k": 2, "loss__hidden_weight": 1.0},
            "config.loss.hidden_weight=1.0 needs the teacher's hidden states; set "
            "config.teacher.runs=in_step.",
        ),
        ("distill_in_step", {"teacher__sharding": "zero4"}, "config.teacher.sharding='zero4' must"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_their_path(stages, name, given, message):
    with pytest.raises(ValueError, match="config") as error:
        stages.config(name, **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "tree"), NAMES.items())
def test_a_checkpoint_of_any_stage_says_what_its_model_is(stages, name, tree):
    config = stages.config(name)
    assert type(config) is tree
    found = run_config.of_any_stage(config_lib.to_plain(config))
    assert type(found) is RunConfig
    for field in dataclasses.fields(RunConfig):
        expected = XentConfig() if field.name == "loss" else getattr(config, field.name)
        assert getattr(found, field.name) == expected, field.name


def test_where_a_frozen_model_lies_may_change_and_what_it_says_may_not(stages):
    old, new = (
        config_lib.to_plain(stages.config("distill_in_step", **given))
        for given in ({}, {"teacher__from": "here", "teacher__sharding": "zero1"})
    )
    breaking, harmless = run_config.split_changes(DistillRun, old, new)
    assert breaking == []
    assert [line.split(":")[0] for line in harmless] == [
        "config.teacher.from", "config.teacher.sharding",
    ]  # fmt: skip
    new = config_lib.to_plain(stages.config("distill_in_step", loss__temperature=3.0))
    breaking, _ = run_config.split_changes(DistillRun, old, new)
    assert breaking == ["config.loss.temperature: 2.0 -> 3.0"]
