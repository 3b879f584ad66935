import pytest

from jaxtrain.hub.families import deepseek_v2
from tests.hub.families.parity import SIZES, check_family

LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": None,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
EXPERTS = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
GROUPS = {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2}
SIZES_ONLY = {k: v for k, v in SIZES.items() if not k.startswith("attn")}


@pytest.mark.reference
def test_deepseek_v2_is_that_of_transformers(tmp_path):
    fields = {**LATENT, **EXPERTS, **GROUPS, "routed_scaling_factor": 2.0, "num_hidden_layers": 2}
    config = check_family("DeepseekV2ForCausalLM", fields, tmp_path).config
    assert (config.head_dim, config.rope_dim, config.value_dim) == (10, 4, 8)
    assert (config.kv_latent_dim, config.q_latent_dim) == (12, None)
    assert (config.num_router_groups, config.num_router_groups_per_token) == (3, 2)
    assert (config.num_dense_layers, config.num_shared_experts) == (1, 2)


READ = {**SIZES_ONLY, **LATENT, **EXPERTS}


def test_groups_of_a_greedy_router_are_without_effect():
    config = deepseek_v2.FAMILY.read({**READ, "n_group": 3, "topk_group": 2})
    assert config.num_router_groups == 1
    assert deepseek_v2.FAMILY.read({**READ, **GROUPS}).num_router_groups == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk_method": "noaux_tc"}, "topk_method='noaux_tc' must be greedy or group_limited"),
        ({"norm_topk_prob": True}, "norm_topk_prob=True is not supported"),
        ({"scoring_func": "sigmoid"}, "scoring_func='sigmoid' is not supported"),
        ({"moe_layer_freq": 2}, "moe_layer_freq=2 is not supported"),
        ({"attention_bias": True}, "attention_bias=True is not supported"),
        ({"head_dim": 10}, "head_dim=10 is not supported .only 4.: it repeats qk_rope_head_dim"),
        ({"num_key_value_heads": 2}, "num_kv_heads=2 must be num_heads=4 with kv_latent_dim"),
    ],
)
def test_what_is_not_computed_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        deepseek_v2.FAMILY.read({**READ, **changes})


def test_query_latent_is_off_for_null_and_published_where_absent():
    assert deepseek_v2.FAMILY.read(READ).q_latent_dim is None
    absent = {name: value for name, value in READ.items() if name != "q_lora_rank"}
    assert deepseek_v2.FAMILY.read(absent).q_latent_dim == 1536
