import math

import pytest

from jaxtrain.hub.families import llama
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope, write_rope
from jaxtrain.models.config import ModelConfig

SIZES = {
    "vocab_size": 16,
    "num_layers": 1,
    "d_model": 8,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 8,
    "d_ff": 8,
    "context_len": 64,
}


def read(values, **more):
    fields = Fields({"max_position_embeddings": 64, **values})
    rope = read_rope(fields, 8, **more)
    assert not fields.problems, fields.problems
    return rope


def problems(values):
    fields = Fields({"max_position_embeddings": 64, **values})
    read_rope(fields, 8)
    return "; ".join(fields.problems)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_base": 77.0},
        {"rope_scaling": "linear", "rope_factor": 3.0},
        {"rope_scaling": "dynamic", "rope_factor": 3.0, "rope_original_len": 64},
        {"rope_scaling": "yarn", "rope_factor": 3.0, "rope_original_len": 16},
        {
            "rope_scaling": "yarn",
            "rope_factor": 3.0,
            "rope_original_len": 16,
            "rope_beta_fast": 9.0,
            "rope_beta_slow": 0.25,
            "rope_truncate": False,
            "rope_attention_factor": 0.75,
        },
        {
            "rope_scaling": "llama3",
            "rope_factor": 3.0,
            "rope_original_len": 16,
            "rope_low_freq_factor": 1.5,
            "rope_high_freq_factor": 5.0,
        },
        {
            "rope_scaling": "longrope",
            "rope_factor": 3.0,
            "rope_original_len": 16,
            "rope_short_factors": (1.0, 1.5, 2.0, 2.5),
            "rope_long_factors": (3.0, 4.0, 5.0, 6.0),
            "rope_attention_factor": 1.25,
        },
    ],
    ids=lambda rope: rope.get("rope_scaling", "none"),
)
def test_what_is_written_is_read_again(rope):
    config = ModelConfig(**SIZES, **rope)
    assert llama.FAMILY.cannot_express(config) == []
    again = ModelConfig(**SIZES, **read(write_rope(config)))
    assert again == config


def test_both_forms_say_the_same():
    scaling = {"factor": 3.0, "original_max_position_embeddings": 16}
    old = read({"rope_theta": 77.0, "rope_scaling": {"type": "yarn", **scaling}})
    new = read({"rope_parameters": {"rope_type": "yarn", "rope_theta": 77.0, **scaling}})
    assert old == new
    assert old["rope_base"] == 77


def test_deepseek_terms_of_yarn_become_one_factor():
    scaling = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 16}
    rope = read({"rope_scaling": {**scaling, "mscale": 0.7, "mscale_all_dim": 1.3}})
    expected = (0.07 * math.log(40) + 1) / (0.13 * math.log(40) + 1)
    assert rope["rope_attention_factor"] == pytest.approx(expected, rel=1e-12)
    assert read({"rope_scaling": scaling})["rope_attention_factor"] is None


def test_lengths_that_a_scaling_goes_by():
    yarn = {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 16}}
    assert read(yarn)["rope_factor"] == 4  # 64 / 16
    llama3 = {"type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert read({"rope_scaling": llama3})["rope_original_len"] == 64
    dynamic = read({"rope_scaling": {"type": "dynamic", "factor": 2.0}})
    assert dynamic["rope_original_len"] == 64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_scaling": {"type": "ntk", "factor": 2.0}}, "rope_scaling.rope_type='ntk' must be"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}},
            "rope_scaling.beta_fast=3 is not known",
        ),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            "agree with type='linear'",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"a": 1}},
            "contradict each other",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 must be 1"),
        (
            {
                "rope_scaling": {
                    "type": "longrope",
                    "short_factor": [1, 2],
                    "long_factor": ["x"] * 4,
                }
            },
            "short_factor must be 4 numbers, one for each pair; rope_scaling.long_factor must be 4",
        ),
        (
            {
                "rope_scaling": {"type": "dynamic", "factor": 2.0},
                "original_max_position_embeddings": 8,
            },
            "original_max_position_embeddings=8 must be max_position_embeddings=64",
        ),
    ],
)
def test_what_no_rope_can_be_is_refused_by_name(values, message):
    assert message in problems(values)


def test_an_export_states_the_context():
    config = ModelConfig(**{**SIZES, "context_len": None})
    with pytest.raises(ValueError, match="context_len=None"):
        write_rope(config)
