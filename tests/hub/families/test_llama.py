import pytest

from jaxtrain.hub.families import llama
from tests.hub.families.parity import SIZES, check_family

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.reference
def test_llama_is_that_of_transformers(tmp_path):
    fields = {"attention_bias": True, "mlp_bias": True, "head_dim": 16, "rope_parameters": LLAMA3}
    model = check_family("LlamaForCausalLM", fields, tmp_path)
    assert model.config.attention_bias == "all"
    assert model.config.rope_scaling == "llama3"


OLD = {**{k: v for k, v in SIZES.items() if not k.startswith("attn")}, "model_type": "llama"}
del OLD["num_key_value_heads"]


def test_llama_2_file_of_before_grouped_queries_is_read():
    """No rope_theta, head_dim or num_key_value_heads: they had not been thought of."""
    config = llama.FAMILY.read({**OLD, "pretraining_tp": 1, "rope_scaling": None})
    assert (config.num_kv_heads, config.head_dim, config.rope_base) == (4, 8, 10_000.0)
    assert not config.tied_head


def test_rope_scaling_of_version_4_is_read():
    scaling = {"type": "linear", "factor": 2.0}
    config = llama.FAMILY.read({**OLD, "rope_scaling": scaling, "rope_theta": 77.0})
    assert (config.rope_scaling, config.rope_factor, config.rope_base) == ("linear", 2.0, 77.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ({"attention_dropout": 0.1}, "attention_dropout=0.1 is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 must be 1"),
        ({"sliding_window": 4}, "sliding_window=4 is not known to this family and could change"),
        ({"architectures": ["LlamaForTokenClassification"]}, "other heads are not read"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "id2label has 2 labels"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is given"),
    ],
)
def test_llama_refuses_what_it_does_not_compute(changes, message):
    with pytest.raises(ValueError, match=message):
        llama.FAMILY.read({**OLD, **changes})
