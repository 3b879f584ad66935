import pytest

from jaxtrain.hub.families import gpt_oss
from tests.hub.families.parity import SIZES, check_family

YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "truncate": False,
}
FIELDS = {
    "head_dim": 12,
    "sliding_window": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32,
}
SIZES_ONLY = {k: v for k, v in SIZES.items() if not k.startswith("attn")}


@pytest.mark.reference
def test_gpt_oss_is_that_of_transformers(tmp_path):
    config = check_family("GptOssForCausalLM", {**FIELDS, "rope_parameters": YARN}, tmp_path).config
    assert (config.activation, config.attention_sinks) == ("clamped_swiglu", True)
    assert [config.layer_window(layer) for layer in range(3)] == [4, None, 4]
    assert (config.attention_bias, config.ffn_bias, config.router_bias) == ("all", True, True)
    assert not config.rope_truncate


READ = {
    **SIZES_ONLY,
    **FIELDS,
    "rope_scaling": {k: v for k, v in YARN.items() if k != "rope_theta"},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit=5.0 is not supported .only 7.0."),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha=1.0 is not supported .only 1.702."),
        ({"experts_per_token": 3}, "experts_per_token=3 is not supported .only 2.: it repeats"),
        (
            {"quantization_config": {"quant_method": "mxfp4"}},
            r"quant_method=mxfp4\): quantised weights are not read; take a bfloat16 copy: ",
        ),
        ({"rope_scaling": None}, "rope_scaling is missing; this family is made with yarn"),
    ],
)
def test_what_is_not_computed_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        gpt_oss.FAMILY.read({**READ, **changes})


def test_every_other_layer_is_local_where_the_file_does_not_say():
    config = gpt_oss.FAMILY.read(READ)
    assert [config.layer_window(layer) for layer in range(3)] == [4, None, 4]
    assert config.rope_base == 150_000
