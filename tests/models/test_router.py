"""What keeps experts in balance; whom a router chooses is tested in test_moe.py."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import quick
from flax import nnx

from jaxtrain import measured
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.parameters import read_measured, read_nontrained, split
from jaxtrain.models.router import Router

CONFIG = ModelConfig(
    vocab_size=64, num_layers=2, d_model=8, num_heads=2, num_kv_heads=2, head_dim=4, d_ff=12,
    num_experts=6, num_experts_per_token=2,
)  # fmt: skip
X = np.random.default_rng(0).standard_normal((3, 8, 8)).astype(np.float32) * 2
IS_TOKEN = np.arange(8)[None] < np.array([[8], [5], [0]])  # the last row is filler


def parts_of(**changes):
    config = dataclasses.replace(CONFIG, **changes)
    parts = split(Router(config, rngs=nnx.Rngs(0)))
    # Weights of which the first expert gets most.
    w = np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32)
    return parts, {**parts.params, "w_DE": jnp.asarray(w)}


def measures(parts, params, x=X, is_token=IS_TOKEN):
    """(measures, and a model that has them) of one pass."""

    def run(x):
        model = parts.bind(params, {}, measured.zeros(parts.measured))
        model(x, jnp.asarray(is_token))
        return read_measured(model)

    found = quick(run)(jnp.asarray(x))
    return found, parts.bind(params, {}, found)


def numpy_measures(w_DE, x, is_token, act):
    """By row: (load, normalised scores, lse²) summed over tokens, and their number."""
    logits = x.astype(np.float64) @ np.asarray(w_DE, np.float64)
    scores = np.exp(logits) if act == "softmax" else 1 / (1 + np.exp(-logits))
    share = scores / scores.sum(-1, keepdims=True)
    chosen = np.zeros_like(scores)
    np.put_along_axis(chosen, np.argsort(-scores, -1)[..., :2], 1, -1)
    counts = is_token[..., None]
    lse = np.log(np.exp(logits).sum(-1))
    return (
        (chosen * counts).sum(1),
        (share * counts).sum(1),
        (lse**2 * is_token).sum(1),
        (is_token.sum(1)),
    )


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_balance_of_the_batch_is_switchs_formula(scores):
    parts, params = parts_of(
        router_scores=scores, router_balance_weight=0.5, router_balance_over="batch"
    )
    _, model = measures(parts, params)
    load, share, _, num = numpy_measures(params["w_DE"], X, IS_TOKEN, scores)
    fraction, probability = load.sum(0) / (2 * num.sum()), share.sum(0) / num.sum()
    expected = 0.5 * 6 * (fraction * probability).sum()
    assert float(model.auxiliary(model)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.reference
def test_balance_is_that_of_transformers_but_for_the_number_of_chosen_experts():
    """Theirs counts assignments per token, not their share: k where all is even, ours 1."""
    torch = pytest.importorskip("torch")
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    parts, params = parts_of(router_balance_weight=1.0, router_balance_over="batch")
    _, model = measures(parts, params)
    logits = torch.tensor(X.reshape(-1, 8) @ np.asarray(params["w_DE"]))
    mask = torch.tensor(IS_TOKEN.astype(np.int64))
    theirs = mixtral.load_balancing_loss_func((logits,), 6, 2, mask)
    assert 2 * float(model.auxiliary(model)) == pytest.approx(float(theirs), rel=1e-5)


def test_balance_of_rows_is_the_mean_over_rows_with_tokens():
    parts, params = parts_of(router_balance_weight=0.5)
    _, model = measures(parts, params)
    load, share, _, num = (part[:2] for part in numpy_measures(params["w_DE"], X, IS_TOKEN,
                                                               "softmax"))  # fmt: skip
    by_row = 6 * (load / (2 * num[:, None]) * share / num[:, None]).sum(-1)
    assert float(model.auxiliary(model)) == pytest.approx(0.5 * by_row.mean(), rel=1e-5)


def test_z_loss_is_the_mean_square_of_the_normaliser():
    parts, params = parts_of(router_z_weight=0.25)
    _, model = measures(parts, params)
    _, _, squares, num = numpy_measures(params["w_DE"], X, IS_TOKEN, "softmax")
    expected = 0.25 * squares.sum() / num.sum()
    assert float(model.auxiliary(model)) == pytest.approx(expected, rel=1e-5)


def test_balance_is_its_weight_where_all_is_even():
    parts, params = parts_of(router_balance_weight=0.5, router_balance_over="batch")
    even = {"w_DE": jnp.zeros((8, 6))}
    found, _ = measures(parts, even)
    found = {**found, "load_E": jnp.full(6, jnp.sum(found["load_E"]) / 6)}
    model = parts.bind(params, {}, found)
    assert float(model.auxiliary(model)) == pytest.approx(0.5, rel=1e-6)


def test_filler_has_no_share_even_where_it_is_not_finite():
    parts, params = parts_of(router_balance_weight=0.5, router_z_weight=0.1)
    clean, _ = measures(parts, params)
    spoilt, _ = measures(parts, params, np.where(IS_TOKEN[..., None], X, np.nan))
    jax.tree.map(np.testing.assert_array_equal, clean, spoilt)
    assert clean["num_tokens"] == 13
    assert clean["load_E"].sum() == 26


@pytest.mark.parametrize("over", ["row", "batch"])
def test_gradient_of_the_terms_is_finite_and_lowers_the_favourite(over):
    parts, params = parts_of(
        router_balance_weight=1.0, router_z_weight=0.1, router_balance_over=over
    )

    def terms(w_DE):
        model = parts.bind({"w_DE": w_DE}, {}, measured.zeros(parts.measured))
        model(jnp.asarray(X), jnp.asarray(IS_TOKEN))
        whole = parts.bind({"w_DE": w_DE}, {}, jax.lax.stop_gradient(read_measured(model)))
        return model.auxiliary(whole)

    before, gradient = quick(jax.value_and_grad(terms))(params["w_DE"])
    assert np.isfinite(gradient).all()
    assert float(quick(terms)(params["w_DE"] - 0.02 * gradient)) < float(before)


@pytest.mark.parametrize("over", ["row", "batch"])
def test_terms_of_a_batch_in_parts_add_up_to_those_of_the_whole(over):
    """PRE-04: each part's share has the whole batch's denominators."""
    parts, params = parts_of(
        router_balance_weight=0.5, router_z_weight=0.25, router_balance_over=over
    )
    _, whole = measures(parts, params)
    shares = []
    for rows in (slice(0, 1), slice(1, 3)):
        _, part = measures(parts, params, X[rows], IS_TOKEN[rows])
        shares.append(float(part.auxiliary(whole)))
    assert sum(shares) == pytest.approx(float(whole.auxiliary(whole)), rel=1e-6)
    assert min(shares) > 0


BIASED = {"router_scores": "sigmoid", "router_selection_bias": True, "router_bias_rate": 0.25}


def test_bias_moves_by_the_rate_towards_an_even_load():
    parts, params = parts_of(**BIASED)
    found, _ = measures(parts, params)
    load = np.array([9, 3, 4, 4, 4, 0], np.float32)  # mean 4
    stacked = jnp.asarray([load, load[::-1]])  # as two layers
    params = {**params, "selection_bias_E": jnp.zeros((2, 6))}
    model = parts.bind(params, {}, {**found, "load_E": stacked})
    model.settle()
    bias = read_nontrained(model, {"selection_bias_E": 0})["selection_bias_E"]
    expected = np.array([-1, 1, 0, 0, 0, 1]) * 0.25
    np.testing.assert_array_equal(bias, [expected, expected[::-1]])


def test_a_skewed_router_returns_to_balance():
    """Task gradients take no part: only the bias moves."""
    parts, params = parts_of(**{**BIASED, "router_bias_rate": 0.02})
    x = np.random.default_rng(2).standard_normal((8, 64, 8)).astype(np.float32) + 0.5
    skewed = params["w_DE"].at[:, 0].add(2.0)
    everyone = np.ones((8, 64), bool)

    @jax.jit
    def step(bias):
        model = parts.bind({"w_DE": skewed, "selection_bias_E": bias}, {},
                           measured.zeros(parts.measured))  # fmt: skip
        model(jnp.asarray(x), jnp.asarray(everyone))
        load = read_measured(model)["load_E"]
        model.settle()
        return read_nontrained(model, {"selection_bias_E": 0})["selection_bias_E"], load

    bias, first = step(jnp.zeros(6))
    for _ in range(150):
        bias, load = step(bias)
    assert float(first.max() / first.mean()) > 2
    assert float(load.max() / load.mean()) < 1.15


def test_metrics_tell_loads_entropies_and_dead_experts():
    parts, params = parts_of(router_selection_bias=True)
    bias = np.array([0.5, 0, 0, 0, 0, -0.25], np.float32)
    load = np.array([64, 32, 32, 32, 32, 0], np.float32)
    found, _ = measures(parts, params)
    found = {**found, "load_E": jnp.asarray(load)}
    model = parts.bind({**params, "selection_bias_E": jnp.asarray(bias)}, {}, found)
    metrics = model.metrics()
    share = load[:5] / 192
    assert metrics["moe/load_max"] == pytest.approx(2)
    assert metrics["moe/load_entropy"] == pytest.approx(-(share * np.log(share)).sum() / np.log(6))
    assert metrics["moe/dead_experts"] == 1
    assert metrics["moe/bias_range"] == 0.75
    _, _, squares, num = numpy_measures(params["w_DE"], X, IS_TOKEN, "softmax")
    assert metrics["moe/router_z"] == pytest.approx(squares.sum() / num.sum(), rel=1e-5)
    logits = X.astype(np.float64) @ np.asarray(params["w_DE"], np.float64)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    entropy = -(p * np.log(p)).sum(-1)[IS_TOKEN].mean()
    assert metrics["moe/router_entropy"] == pytest.approx(entropy, rel=1e-5)


def test_an_expert_without_a_token_among_few_is_not_called_dead():
    parts, params = parts_of()
    found, _ = measures(parts, params)
    model = parts.bind(params, {}, {**found, "load_E": jnp.asarray([20.0, 6, 0, 0, 0, 0])})
    assert model.metrics()["moe/dead_experts"] == 0
