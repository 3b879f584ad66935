"""Routing and experts against NumPy in float64, which chooses and computes token by token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled, parameters, quick
from flax import nnx

from jaxtrain.models import moe
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.router import Routing
from jaxtrain.precision.recipe import get_recipe

MIXTRAL = ModelConfig(
    vocab_size=64, num_layers=2, d_model=16, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=12,
    num_experts=8, num_experts_per_token=2,
)  # fmt: skip
CASES = {
    "mixtral": {},
    "qwen3 without renormalisation": {"router_normalize": False, "num_experts_per_token": 3},
    "deepseek-v2": {
        "router_normalize": False,
        "router_scale": 2.5,
        "num_router_groups": 4,
        "num_router_groups_per_token": 2,
        "num_experts_per_token": 3,
        "num_shared_experts": 2,
        "d_ff_expert": 6,
    },
    "deepseek-v3": {
        "router_scores": "sigmoid",
        "router_selection_bias": True,
        "router_scale": 1.5,
        "num_router_groups": 2,
        "num_experts_per_token": 3,
        "num_shared_experts": 1,
    },
    "sigmoid without renormalisation": {
        "router_scores": "sigmoid",
        "router_normalize": False,
        "router_scale": 0.5,
    },
    "gpt-oss": {"router_bias": True, "ffn_bias": True, "activation": "clamped_swiglu"},
    "all experts": {"num_experts_per_token": 8},
}
X = np.random.default_rng(0).standard_normal((2, 5, 16)) * 3


def unconstrained(x, letters):
    return x


def layer(**changes):
    """An expert layer with random parameters, biases too, and these in float64 by dotted path."""
    config = dataclasses.replace(MIXTRAL, **changes)
    recipe = get_recipe("float32")

    def make():
        return moe.ExpertFeedForward(
            config, rngs=nnx.Rngs(0), recipe=recipe, constrain=unconstrained
        )

    made = filled(make, std=0.5)
    return made, config, parameters(made)


def expected(x, config, p):
    """(expert ids, weights, output) of one token."""
    logits = x @ p["router.w_DE"] + p.get("router.b_E", 0)
    if config.router_scores == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    ranked = scores + p.get("router.selection_bias_E", 0)
    groups = ranked.reshape(config.num_router_groups, -1)
    best = 2 if config.router_scores == "sigmoid" else 1
    by_group = np.sort(groups, axis=-1)[:, -best:].sum(-1)
    open_groups = np.argsort(-by_group)[: config.num_router_groups_per_token]
    candidates = [e for e in range(8) if e // groups.shape[1] in open_groups]
    chosen = sorted(candidates, key=lambda e: -ranked[e])[: config.num_experts_per_token]
    weights = scores[chosen] / (scores[chosen].sum() if config.router_normalize else 1)
    weights = weights * config.router_scale
    out = np.zeros(16)
    for expert, weight in zip(chosen, weights, strict=True):
        gate = x @ p["w_gate_EDF"][expert] + p.get("b_gate_EF", np.zeros((8, 1)))[expert]
        up = x @ p["w_up_EDF"][expert] + p.get("b_up_EF", np.zeros((8, 1)))[expert]
        hidden = activated(config, gate, up)
        out += weight * (hidden @ p["w_down_EFD"][expert] + p.get("b_down_ED", np.zeros(8))[expert])
    if config.num_shared_experts:
        gate, up = x @ p["shared.w_gate_DF"], x @ p["shared.w_up_DF"]
        out += activated(config, gate, up) @ p["shared.w_down_FD"]
    return chosen, weights, out


def activated(config, gate, up):
    if config.activation == "swiglu":
        return gate / (1 + np.exp(-gate)) * up
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


@pytest.mark.parametrize("case", CASES)
def test_experts_and_weights_are_those_of_numpy(case):
    made, config, params = layer(**CASES[case])
    routing, out = quick(lambda x: (made.router(x), made(x)))(jnp.asarray(X, jnp.float32))
    for row, t in np.ndindex(2, 5):
        chosen, weights, y = expected(X[row, t].astype(np.float32).astype(float), config, params)
        assert routing.expert[row, t].tolist() == chosen
        np.testing.assert_allclose(routing.weight[row, t], weights, rtol=1e-5)
        np.testing.assert_allclose(out[row, t], y, atol=1e-4 * np.abs(y).max())


def test_clamps_are_reached():
    """Or the case of GPT-OSS would not see them."""
    _, _, p = layer(**CASES["gpt-oss"])
    up = np.einsum("btd,edf->btef", X, p["w_up_EDF"]) + p["b_up_EF"]
    assert (np.abs(up) > 7).mean() > 0.05


def test_selection_bias_chooses_and_weighs_nothing():
    made, _, _ = layer(**CASES["deepseek-v3"])
    bias = np.zeros(8, np.float32)
    bias[5] = 100
    made.router.selection_bias_E[...] = jnp.asarray(bias)
    routing = jax.tree.map(np.asarray, quick(made.router)(jnp.asarray(X, jnp.float32)))
    assert (routing.expert == 5).any(axis=-1).all()
    scores = np.take_along_axis(1 / (1 + np.exp(-routing.logits_BTE)), routing.expert, axis=-1)
    np.testing.assert_allclose(
        routing.weight, 1.5 * scores / scores.sum(-1, keepdims=True), rtol=1e-5
    )


def test_selection_bias_has_no_gradient_and_the_router_has():
    made, _, _ = layer(**CASES["deepseek-v3"])
    graph, params = nnx.split(made)
    x = jnp.asarray(X, jnp.float32)
    grads = quick(jax.grad(lambda p: jnp.sum(jnp.square(nnx.merge(graph, p)(x)))))(params)
    np.testing.assert_array_equal(grads["router"]["selection_bias_E"][...], 0)
    assert float(jnp.abs(grads["router"]["w_DE"][...]).max()) > 1e-3


def test_experts_start_apart_and_as_wide_as_dense_layers():
    """Each expert is a feed-forward of its own: 1 / sqrt(what it sums), whatever E is."""
    config = dataclasses.replace(MIXTRAL, d_model=64, d_ff=48)

    def make():
        made = moe.ExpertFeedForward(
            config, rngs=nnx.Rngs(0), recipe=get_recipe("float32"), constrain=unconstrained
        )
        return made.w_gate_EDF[...], made.w_up_EDF[...], made.w_down_EFD[...]

    *into, out = (np.asarray(w) for w in quick(make)())
    for w in into:
        assert w.std() == pytest.approx(64**-0.5, rel=0.02)
    assert out.std() == pytest.approx((48 * 2 * config.num_layers) ** -0.5, rel=0.02)
    each = np.concatenate([w.reshape(8, -1) for w in (*into, out)])
    assert np.abs(np.corrcoef(each) - np.eye(24)).max() < 0.1


def test_scores_that_underflow_give_finite_weights():
    made, _, _ = layer(**CASES["deepseek-v3"])
    made.router.w_DE[...] = jnp.asarray(np.full((16, 8), -1e3, np.float32))
    routing = quick(made.router)(np.ones((1, 1, 16), np.float32))
    assert np.isfinite(np.asarray(routing.weight)).all()


def test_router_is_float32_under_bfloat16():
    config = dataclasses.replace(MIXTRAL, num_shared_experts=1)
    recipe = get_recipe("bfloat16")

    def run(x):
        made = moe.ExpertFeedForward(
            config, rngs=nnx.Rngs(0), recipe=recipe, constrain=unconstrained
        )
        return made.router(x).logits_BTE, made(x)

    logits, out = jax.eval_shape(run, jnp.asarray(X, jnp.bfloat16))
    assert (logits.dtype, out.dtype) == (jnp.float32, jnp.bfloat16)


def test_weights_by_expert_are_those_chosen_and_zero_elsewhere():
    routing = Routing(
        jnp.array([[[2, 0]]], jnp.int32), jnp.array([[[0.7, 0.3]]]), jnp.zeros((1, 1, 4))
    )
    np.testing.assert_allclose(moe.weights_by_expert(routing)[0, 0], [0.3, 0, 0.7, 0], rtol=1e-6)
