import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxtrain import companions, config_program
from jaxtrain.companions import Companion
from jaxtrain.lora.adapters import BASE
from jaxtrain.lora.config import LoraConfig
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.run_config import InitConfig
from jaxtrain.starting_point import StartingPoint
from jaxtrain.stored_weights import named
from tests.stages import VOCAB_SIZE, save_model

GIVEN = {
    "reference": Companion(),
    "teacher": Companion("elsewhere", recipe="bfloat16", sharding="zero1"),
}


@pytest.fixture
def config(stages):
    """Of a run that trains the whole model; everything computed in float32."""
    return stages.config("sft", mesh__sharding="zero2")


@pytest.fixture
def lora(config):
    init = InitConfig("base", "params")
    return dataclasses.replace(config, lora=LoraConfig(rank=2), init=init)


@pytest.fixture
def start(stages):
    stored = {"reference": named(str(stages.base)), "teacher": named(str(stages.teacher))}
    return StartingPoint("", others=stored)


def make(config, start):
    def maker_of(shape, recipe):
        return config_program.model_maker(config, shape=shape, recipe=get_recipe(recipe))

    return companions.frozen_models(config, GIVEN, start, maker_of)


def test_what_has_to_be_loaded_is_all_but_the_base_of_a_lora_run(config, lora):
    assert companions.wheres(config, GIVEN) == {"reference": None, "teacher": "elsewhere"}
    assert companions.wheres(lora, GIVEN) == {"teacher": "elsewhere"}
    elsewhere = {"reference": Companion("elsewhere")}
    assert companions.wheres(lora, elsewhere) == {"reference": "elsewhere"}


def test_models_have_the_shape_that_is_stored_and_are_held_as_they_compute(config, start):
    models = make(config, start)
    reference, teacher = models["reference"], models["teacher"]
    assert (reference.tree, teacher.tree) == ("reference", "teacher")
    assert reference.config.d_model == 16
    assert (teacher.config.d_model, teacher.config.vocab_size) == (24, VOCAB_SIZE + 4)
    assert (reference.dtype, teacher.dtype) == (jnp.float32, jnp.bfloat16)
    assert (reference.sharding, teacher.sharding) == ("zero2", "zero1")
    assert teacher.model.params["embedding_VD"].shape == (VOCAB_SIZE + 4, 24)
    held = jax.eval_shape(teacher.init, jax.random.key(0))
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(held)}
    assert dtypes == {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}


def test_the_reference_of_a_lora_run_is_its_base(lora, start):
    reference = make(lora, start)["reference"]
    assert reference.tree == BASE
    assert reference.config == lora.model


def test_each_is_described_by_size_format_and_place(config, lora, stages, start):
    told = companions.describe(make(config, start), start)
    num = sum(leaf.size for leaf in jax.tree.leaves(make(config, start)["teacher"].model.params))
    assert told["teacher"] == (
        f"{num:,} parameters, frozen, held in bfloat16 as zero1: {stages.teacher}@1"
    )
    assert told["reference"].endswith(f"held in float32 as zero2: {stages.base}@1")
    told = companions.describe(make(lora, start), start)["reference"]
    assert told.endswith("parameters, frozen: the model below the low-rank updates")


def test_a_reward_model_is_no_companion(config, tmp_path):
    scorer = save_model(tmp_path, 0, shape={"model.scalar_head": "true"})
    start = StartingPoint("", others={each: named(str(scorer)) for each in GIVEN})
    with pytest.raises(ValueError, match=r"^config.reference.from: .*@1 is a reward model, which"):
        make(config, start)
