import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.models import flops
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import flatten, split
from jaxtrain.precision.recipe import get_recipe

SMALL = ModelConfig(
    vocab_size=67, num_layers=3, d_model=24, num_heads=6, num_kv_heads=2, head_dim=10, d_ff=44
)
LLAMA3_8B = ModelConfig(
    vocab_size=128_256,
    num_layers=32,
    d_model=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    d_ff=14_336,
    rope_base=500_000.0,
)
LLAMA3_70B = dataclasses.replace(LLAMA3_8B, num_layers=80, d_model=8192, num_heads=64, d_ff=28_672)


EXPERTS = dict(num_experts=6, num_experts_per_token=2, d_ff_expert=20)
LATENT = dict(num_kv_heads=6, kv_latent_dim=7, rope_head_dim=4, value_head_dim=8)
MIXTRAL_8X7B = ModelConfig(
    vocab_size=32_000, num_layers=32, d_model=4096, num_heads=32, num_kv_heads=8, head_dim=128,
    d_ff=14_336, num_experts=8, num_experts_per_token=2,
)  # fmt: skip
QWEN3_30B_A3B = ModelConfig(
    vocab_size=151_936, num_layers=48, d_model=2048, num_heads=32, num_kv_heads=4, head_dim=128,
    d_ff=6144, qk_norm="head", num_experts=128, num_experts_per_token=8, d_ff_expert=768,
)  # fmt: skip
DEEPSEEK_V3 = ModelConfig(
    vocab_size=129_280, num_layers=61, d_model=7168, num_heads=128, num_kv_heads=128, head_dim=192,
    d_ff=18_432, kv_latent_dim=512, q_latent_dim=1536, rope_head_dim=64, value_head_dim=128,
    num_experts=256, num_experts_per_token=8, d_ff_expert=2048, num_shared_experts=1,
    num_dense_layers=3, router_scores="sigmoid", router_selection_bias=True, router_scale=2.5,
    num_router_groups=8, num_router_groups_per_token=4,
)  # fmt: skip


def abstract_params(config):
    recipe = get_recipe("bfloat16")

    def init(rng):
        return split(Decoder(config, rngs=nnx.Rngs(rng), recipe=recipe)).params

    return jax.eval_shape(init, jax.random.key(0))


@pytest.mark.parametrize(
    ("config", "published"), [(LLAMA3_8B, 8_030_261_248), (LLAMA3_70B, 70_553_706_496)]
)
def test_llama3_has_its_published_size(config, published):
    assert sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config))) == published
    assert flops.num_params(config) == published


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_head": True},
        {"qk_norm": "head"},
        {"qk_norm": "all", "norm_placement": "both"},
        {"norm_placement": "post", "vocab_multiple": 64},
        {"tied_head": True, "vocab_multiple": 64},
        {"attention_bias": "qkv"},
        {"attention_bias": "all", "ffn_bias": True},
        {"activation": "relu2", "ffn_bias": True},
        {**EXPERTS, "num_dense_layers": 1, "num_shared_experts": 2, "router_selection_bias": True},
        {**EXPERTS, "ffn_bias": True, "router_bias": True, "attention_sinks": True},
        {**EXPERTS, "ffn_bias": True, "num_dense_layers": 2, "num_shared_experts": 1},
        {
            "bidirectional": True,
            "norm": "layer",
            "norm_placement": "residual",
            "num_positions": 9,
            "num_token_types": 2,
            "masked_lm_head": True,
            "activation": "gelu",
            "tied_head": True,
        },
        {"norm": "layer", "activation": "gelu", "ffn_bias": True},
        {**EXPERTS, "num_mtp_layers": 2, "num_dense_layers": 1},
        {"num_mtp_layers": 1, "norm_placement": "both"},
        LATENT,
        {**LATENT, "q_latent_dim": 9, "value_head_dim": None},
    ],
)
def test_num_params_counts_the_leaves(changes):
    config = dataclasses.replace(SMALL, **changes)
    leaves = jax.tree.leaves(abstract_params(config))
    assert flops.num_params(config) == sum(leaf.size for leaf in leaves)
    assert {leaf.dtype for leaf in leaves} == {np.dtype("float32")}


def of_experts(vocab, d, layers, attention, expert, router, num, *, dense=0, num_dense=0):
    """Parameters where `num` experts of a layer count; sizes are of one layer or expert."""
    of_layer = attention + 2 * d + num * expert + router
    return 2 * vocab * d + d + num_dense * (attention + 2 * d + dense) + layers * of_layer


#: Sizes of parts by the published shapes: a layer's attention, one expert, the router.
MIXTRAL = dict(
    vocab=32_000, d=4096, layers=32, attention=2 * 4096 * 128 * (32 + 8),
    expert=3 * 4096 * 14_336, router=8 * 4096,
)  # fmt: skip
QWEN3 = dict(
    vocab=151_936, d=2048, layers=48, attention=2 * 2048 * 128 * (32 + 4) + 2 * 128,
    expert=3 * 2048 * 768, router=128 * 2048,
)  # fmt: skip
DEEPSEEK = dict(
    vocab=129_280, d=7168, layers=58, num_dense=3, dense=3 * 7168 * 18_432,
    attention=7168 * 1536 + 1536 + 1536 * 128 * 192  # queries
    + 7168 * (512 + 64) + 512 + 512 * 128 * (128 + 128)  # keys and values
    + 128 * 128 * 7168,
    expert=3 * 7168 * 2048, router=256 * 7168 + 256,
)  # fmt: skip


def num_active_leaves(config):
    """From the leaves: of those of routed experts the part that a token goes to."""
    total = 0
    for path, leaf in flatten(abstract_params(config)).items():
        is_routed = path.rpartition("_")[2][0] == "E" and ".router." not in path
        total += leaf.size * (config.num_experts_per_token if is_routed else config.num_experts)
    return total // config.num_experts


@pytest.mark.parametrize(
    ("config", "sizes", "counted", "published", "published_active", "digit"),
    [  # counted: experts, and those of a token; shared ones are of both
        (MIXTRAL_8X7B, MIXTRAL, (8, 2), 46.7e9, 12.9e9, 0.1e9),
        (QWEN3_30B_A3B, QWEN3, (128, 8), 30.5e9, 3.3e9, 0.1e9),
        (DEEPSEEK_V3, DEEPSEEK, (257, 9), 671e9, 37e9, 1e9),
    ],
    ids=["mixtral_8x7b", "qwen3_30b_a3b", "deepseek_v3"],
)
def test_models_of_experts_have_their_published_sizes(
    config, sizes, counted, published, published_active, digit
):
    """Totals to 1 %, active ones to their last published digit (12.88B, 3.353B and 37.55B).

    To 1 % is beyond any one way to count: without the embedding's look-up DeepSeek's are 36.63B,
    but Qwen's 3.04B and Mixtral's 12.75B; routers, norms and biases are below 0.5 % of all three.
    """
    total, active = (of_experts(num=num, **sizes) for num in counted)
    leaves = jax.tree.leaves(abstract_params(config))
    assert flops.num_params(config) == sum(leaf.size for leaf in leaves) == total
    assert flops.num_active_params(config) == num_active_leaves(config) == active
    assert total == pytest.approx(published, rel=0.01)
    assert abs(active - published_active) < digit


def test_active_sizes_are_within_a_percent_of_what_is_published_to_three_digits():
    """Mixtral's 12.9B; DeepSeek's 36.7B (its weights' README), where a look-up is no product."""
    assert flops.num_active_params(MIXTRAL_8X7B) == pytest.approx(12.9e9, rel=0.01)
    looked_up = DEEPSEEK_V3.vocab_size * DEEPSEEK_V3.d_model
    assert flops.num_active_params(DEEPSEEK_V3) - looked_up == pytest.approx(36.7e9, rel=0.01)
    embedding_and_head = 2 * QWEN3_30B_A3B.vocab_size * QWEN3_30B_A3B.d_model
    assert flops.num_params(QWEN3_30B_A3B) - embedding_and_head == pytest.approx(29.9e9, rel=0.01)


def test_all_parameters_of_a_dense_model_are_active():
    assert flops.num_active_params(SMALL) == flops.num_params(SMALL)


def _dot_flops(jaxpr) -> int:
    """2 · (size of the output) · (size of what is contracted), over all matmuls of a jaxpr."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            contracted, _ = equation.params["dimension_numbers"][0]
            shape = equation.invars[0].aval.shape
            size = equation.outvars[0].aval.size
            total += 2 * size * math.prod(shape[axis] for axis in contracted)
        for value in jax.tree.leaves(equation.params, is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            total += _dot_flops(inner) if hasattr(inner, "eqns") else 0
    return total


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "relu2", "tied_head": True},
        {**LATENT, "q_latent_dim": 9, "value_head_dim": 10},  # other sizes are padded by "xla"
        # Computed densely here: the same where a token goes to every expert.
        {**EXPERTS, "num_experts_per_token": 6, "num_shared_experts": 1, "num_dense_layers": 1},
    ],
)
def test_train_flops_are_those_of_the_traced_matmuls(changes):
    """Bidirectional and without a window nothing is skipped, so that every product is seen."""
    config = dataclasses.replace(
        SMALL, bidirectional=True, attention="xla", scan_unroll=3, **changes
    )
    model = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), recipe=get_recipe("float32")))
    parts = split(model)
    ids_BT = jnp.zeros((2, 16), jnp.int32)
    forward = jax.make_jaxpr(lambda p: parts.bind(p, {})(ids_BT, ids_BT))(parts.params)
    per_token = _dot_flops(forward.jaxpr) / ids_BT.size
    assert flops.train_flops_per_token(config, seq_len=16) == 3 * per_token


@pytest.mark.parametrize("changes", [{}, {**EXPERTS, "num_dense_layers": 1}])
def test_trained_modules_cost_a_layer_a_join_and_a_head_each(changes):
    """A layer of theirs is one of the model's last kind; the join is 2d x d."""
    config = dataclasses.replace(SMALL, num_mtp_layers=2, **changes)
    none, longer = (
        flops.train_flops_per_token(
            dataclasses.replace(config, num_mtp_layers=0, num_layers=layers), 64
        )
        for layers in (3, 5)
    )
    ends = 6 * 2 * (2 * 24**2 + 24 * 67)
    assert flops.train_flops_per_token(config, 64) == longer + ends
    untrained = dataclasses.replace(config, mtp_weight=0.0)
    assert flops.train_flops_per_token(untrained, 64) == none


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("window", "seq_len"), [(None, 64), (64, 64), (16, 64), (5, 7), (99, 64)])
def test_attention_flops_count_visible_keys(bidirectional, window, seq_len):
    """Against counting, to half a key per query and side: the formula is the integral."""
    config = dataclasses.replace(SMALL, window=window, bidirectional=bidirectional)
    ahead = np.arange(seq_len)[None, :] - np.arange(seq_len)[:, None]
    visible = np.abs(ahead) < (window or seq_len)
    if not bidirectional:
        visible &= ahead <= 0
    counted = visible.sum() / seq_len
    per_key = 12 * 3 * 6 * 10
    formula = flops.train_flops_by_part(config, seq_len)["attention_scores"] / per_key
    assert abs(formula - counted) <= 1
    if window is None:
        assert formula == (seq_len if bidirectional else seq_len / 2)


def test_global_layers_cost_full_attention():
    config = dataclasses.replace(SMALL, window=4, global_every=3)
    parts = [
        flops.train_flops_by_part(dataclasses.replace(config, **changes), 64)["attention_scores"]
        for changes in ({}, {"global_every": None}, {"global_every": None, "window": None})
    ]
    assert parts[0] == pytest.approx((2 * parts[1] + parts[2]) / 3, rel=1e-12)


def test_llama3_8b_costs_what_the_arithmetic_says():
    """Per layer 2·4096·(32+8)·128 + 3·4096·14336 weights; head 4096·128256; half of T = 8192."""
    weights = 32 * (2 * 4096 * 40 * 128 + 3 * 4096 * 14_336) + 4096 * 128_256
    scores = 12 * 32 * 32 * 128 * 8192 / 2
    assert flops.train_flops_per_token(LLAMA3_8B, 8192) == 6 * weights + scores
