import pytest

from jaxtrain.hub.families import qwen3_moe
from tests.hub.families.parity import SIZES, check_family

FIELDS = {
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "mlp_only_layers": [0],
}
SIZES_ONLY = {k: v for k, v in SIZES.items() if not k.startswith("attn")}


@pytest.mark.reference
@pytest.mark.parametrize("norm_topk_prob", [False, True])
def test_qwen3_moe_is_that_of_transformers(norm_topk_prob, tmp_path):
    fields = {**FIELDS, "norm_topk_prob": norm_topk_prob}
    if norm_topk_prob:  # one model with all the rest, one as plain as can be
        fields |= {"num_hidden_layers": 1, "mlp_only_layers": []}
    config = check_family("Qwen3MoeForCausalLM", fields, tmp_path).config
    assert (config.num_experts, config.d_ff_expert, config.qk_norm) == (6, 12, "head")
    assert config.num_dense_layers == (0 if norm_topk_prob else 1)
    assert config.router_normalize == norm_topk_prob


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_sparse_step": 2}, "decoder_sparse_step=2 is not supported"),
        ({"mlp_only_layers": [1]}, r"mlp_only_layers=\[1\] is not supported: dense layers may"),
        ({"use_sliding_window": True, "max_window_layers": 2}, "max_window_layers=2 is not supp"),
    ],
)
def test_layers_in_an_order_that_is_not_computed_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        qwen3_moe.FAMILY.read({**SIZES_ONLY, **FIELDS, **changes})


def test_window_that_is_on_holds_in_every_layer():
    fields = {**SIZES_ONLY, **FIELDS, "sliding_window": 4}
    assert qwen3_moe.FAMILY.read({**fields, "max_window_layers": 2}).window is None
    config = qwen3_moe.FAMILY.read({**fields, "use_sliding_window": True})
    assert [config.layer_window(layer) for layer in range(3)] == [4, 4, 4]
