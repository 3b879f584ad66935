"""Of experts and latents; heads, RoPE and windows are in test_config.py."""

import dataclasses

import pytest

from jaxtrain.models.config import ModelConfig

DENSE = ModelConfig(
    vocab_size=64, num_layers=6, d_model=32, num_heads=4, num_kv_heads=4, head_dim=8, d_ff=48
)
EXPERTS = dataclasses.replace(DENSE, num_experts=8, num_experts_per_token=2)
LATENT = dataclasses.replace(DENSE, kv_latent_dim=16, rope_head_dim=4)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (DENSE, {"num_shared_experts": 1}, "num_shared_experts=1 must be 0 without experts; set"),
        (DENSE, {"router_scores": "sigmoid"}, "router_scores='sigmoid' must be 'softmax' without"),
        (EXPERTS, {"num_experts_per_token": 9}, "num_experts_per_token=9 must be from 1 to the 8"),
        (EXPERTS, {"num_experts_per_token": 0}, "num_experts_per_token=0 must be > 0"),
        (EXPERTS, {"num_dense_layers": 6}, "num_dense_layers=6 must be from 0 to below"),
        (EXPERTS, {"num_shared_experts": -1}, "num_shared_experts=-1 must be >= 0"),
        (EXPERTS, {"activation": "relu2"}, "activation='relu2' is not computed with num_experts"),
        (EXPERTS, {"num_router_groups": 3}, "num_router_groups=3 must divide num_experts=8"),
        (EXPERTS, {"num_router_groups_per_token": 2}, "num_router_groups=1 must divide"),
        (
            EXPERTS,
            {"num_router_groups": 4, "num_experts_per_token": 3},
            "num_experts_per_token=3 must be from 1 to the 2 experts that a token can choose from",
        ),
        (
            EXPERTS,
            {"num_router_groups": 8, "router_scores": "sigmoid", "num_router_groups_per_token": 2},
            "num_router_groups=8 must leave two experts a group",
        ),
        (DENSE, {"num_mtp_layers": -1}, "num_mtp_layers=-1 must be >= 0"),
        (DENSE, {"num_mtp_layers": 1, "window": 4}, "num_mtp_layers=1 must be 0 for encoders, for"),
        (DENSE, {"mtp_weight": -0.1}, "mtp_weight=-0.1 must be >= 0 and finite"),
        (
            DENSE,
            {"mtp_weight_changes": ((5, 0.2), (5, 0.1))},
            r"mtp_weight_changes=\(\(5, 0.2\), \(5, 0.1\)\) must have steps above 0 that rise",
        ),
        (
            DENSE,
            {"mtp_weight_changes": ((5, float("inf")),)},
            "mtp_weight_changes=.* must have weights >= 0 and finite",
        ),
        (DENSE, {"num_token_types": 2}, "num_token_types=2 must be 0 without learned positions"),
        (DENSE, {"num_positions": 9}, "num_positions=9 is for encoders only; set bidirectional"),
        (DENSE, {"masked_lm_head": True}, "masked_lm_head=True is for encoders only"),
        (DENSE, {"norm": "layer", "qk_norm": "head"}, "norm='layer' is not computed with"),
        (DENSE, {"rope_head_dim": 4}, "rope_head_dim=4 must be None without a latent for keys"),
        (LATENT, {"rope_head_dim": 8}, "rope_head_dim=8 must be even and less than head_dim=8"),
        (LATENT, {"rope_head_dim": None}, "rope_head_dim=None must be even and less than"),
        (LATENT, {"num_kv_heads": 2}, "num_kv_heads=2 must be num_heads=4 with kv_latent_dim"),
        (LATENT, {"attention_bias": "all"}, "attention_bias='all' is not computed with kv_latent"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(config, changes, message):
    with pytest.raises(ValueError, match=message) as error:
        dataclasses.replace(config, **changes)
    assert str(error.value).split("=")[0] in {field.name for field in dataclasses.fields(config)}


def test_first_layers_are_a_stack_of_their_own():
    assert EXPERTS.block_stacks == {"blocks": range(6)}
    assert DENSE.num_expert_layers == 0
    config = dataclasses.replace(EXPERTS, num_dense_layers=2)
    assert config.block_stacks == {"dense_blocks": range(2), "blocks": range(2, 6)}
    assert config.num_expert_layers == 4


def test_layer_period_is_that_of_a_stack():
    windowed = dataclasses.replace(EXPERTS, window=4, global_layers=(1, 3, 5))
    assert windowed.layer_period() == 2
    config = dataclasses.replace(windowed, num_dense_layers=1, global_layers=(0, 1, 3, 5))
    assert config.layer_period() == 5
    assert config.layer_period(range(1, 6)) == 2


def test_sizes_of_experts_and_values_follow_where_they_are_not_given():
    assert EXPERTS.expert_dim == 48
    assert dataclasses.replace(EXPERTS, d_ff_expert=12).expert_dim == 12
    assert (LATENT.rope_dim, LATENT.value_dim) == (4, 4)
    assert dataclasses.replace(LATENT, value_head_dim=6).value_dim == 6
