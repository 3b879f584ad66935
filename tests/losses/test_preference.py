import dataclasses
import functools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled, quick
from flax import nnx
from hypothesis import strategies as st

from jaxtrain.losses.answers import answer_logprobs
from jaxtrain.losses.preference import PreferenceConfig, preference
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.precision.recipe import get_recipe
from tests.losses.answer_rows import (
    V,
    assert_close,
    cast,
    draw_answer,
    draw_model,
    make_rows,
    numeric_gradient,
    sums_and_gradients,
    token_logprobs,
)

CONFIGS = {
    "dpo": PreferenceConfig(),
    "dpo, smoothed": PreferenceConfig(beta=0.7, label_smoothing=0.2),
    "dpo, per token": PreferenceConfig(beta=5.0, length_normalised=True),
    "dpo, forward_kl": PreferenceConfig(beta=0.3, divergence="forward_kl"),
    "dpo, js": PreferenceConfig(beta=0.3, divergence="js"),
    "dpo, alpha": PreferenceConfig(beta=0.3, divergence="alpha", divergence_alpha=0.3),
    "dpo, nll": PreferenceConfig(nll_weight=0.5),
    "robust": PreferenceConfig(kind="robust", label_smoothing=0.2),
    "ipo": PreferenceConfig(kind="ipo", beta=0.2),
    "hinge": PreferenceConfig(kind="hinge", beta=0.3),
    "apo_zero": PreferenceConfig(kind="apo_zero", beta=0.5),
    "apo_down": PreferenceConfig(kind="apo_down", beta=0.5),
    "simpo": PreferenceConfig(kind="simpo", gamma=0.6),
    "simpo, nll": PreferenceConfig(kind="simpo", beta=2.5, nll_weight=0.3),
    "cpo": PreferenceConfig(kind="cpo", beta=0.2),
    "orpo": PreferenceConfig(kind="orpo", beta=0.4),
}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def pair_loss(config, chosen, rejected):
    """(loss, reward of the chosen answer, of the rejected one) in float64; answers are arrays of
    (log-probability of each token, log ratio of the whole, number of tokens)."""
    kind, eps = config.kind, config.label_smoothing
    beta = config.beta or (2.0 if kind == "simpo" else 0.1)

    def reward(tokens, ratio):
        n = len(tokens)
        if kind in ("simpo", "orpo"):
            return beta * tokens.sum() / n
        if kind == "cpo":
            return beta * tokens.sum()
        if config.divergence == "forward_kl":
            ratio = 1 - math.exp(-ratio)
        if config.divergence == "js":
            u = math.exp(ratio)
            ratio = math.log(2 * u / (1 + u))
        if config.divergence == "alpha":
            a = config.divergence_alpha
            ratio = (1 - math.exp(ratio) ** -a) / a
        return beta * ratio / (n if config.length_normalised or kind == "ipo" else 1)

    r_w, r_l = reward(*chosen), reward(*rejected)
    h = r_w - r_l - (config.gamma if kind == "simpo" else 0)
    if kind == "ipo":
        loss = (h / beta - 1 / (2 * beta)) ** 2
    elif kind == "hinge":
        loss = max(0, 1 - h)
    elif kind == "apo_zero":
        loss = 1 - sigmoid(r_w) + sigmoid(r_l)
    elif kind == "apo_down":
        loss = sigmoid(r_w) + 1 - sigmoid(h)
    elif kind == "orpo":
        p, q = math.exp(r_w / beta), math.exp(r_l / beta)
        loss = -beta * math.log(sigmoid(math.log(p / (1 - p) / (q / (1 - q)))))
    elif kind == "robust":
        loss = -(1 - eps) * math.log(sigmoid(h)) + eps * math.log(sigmoid(-h))
        loss /= 1 - 2 * eps
    else:
        loss = -(1 - eps) * math.log(sigmoid(h)) - eps * math.log(sigmoid(-h))
    nll_weight = config.nll_weight
    if nll_weight is None:
        nll_weight = 1.0 if kind in ("cpo", "orpo") else 0.0
    return loss - nll_weight * chosen[0].mean(), r_w, r_l


def expected_sums(config, model, reference, pairs):
    """The loss and metrics summed over pairs, answer by answer in float64."""
    totals = {}
    for pair in pairs:
        answers = []
        for answer in pair:
            tokens = token_logprobs(model, answer)
            cached = answer.reference
            if reference is not None:
                cached = token_logprobs(reference, answer).sum()
            answers.append((tokens, tokens.sum() - cached))
        loss, r_w, r_l = pair_loss(config, *answers)
        gamma = config.gamma if config.kind == "simpo" else 0
        named = {
            "loss": loss,
            "rewards/chosen": r_w,
            "rewards/rejected": r_l,
            "rewards/margin": r_w - r_l,
            "accuracy": float(r_w > r_l),
            "logprobs/chosen": answers[0][0].sum(),
            "logprobs/rejected": answers[1][0].sum(),
            "gradient_weight": sigmoid(gamma - r_w + r_l),
        }
        if config.nll_weight or config.kind in ("cpo", "orpo"):
            named["nll"] = -answers[0][0].mean()
        totals = {name: totals.get(name, 0) + x for name, x in named.items()}
    return totals


def draw_pairs(num=5, seed=0):
    rng = np.random.default_rng(seed)
    return [[draw_answer(rng), draw_answer(rng)] for _ in range(num)]


def as_float32(model):
    return cast(model, jnp.float32)


@pytest.mark.parametrize(
    ("name", "live"), [*((name, False) for name in CONFIGS), ("dpo", True), ("ipo", True)]
)
def test_sums_and_gradients_equal_float64_reference(name, live):
    config, pairs = CONFIGS[name], draw_pairs()
    model, reference = draw_model(0), draw_model(1) if live else None
    batch = make_rows([pairs[:2], pairs[2:]], length=40, num_columns=7)
    frozen = {"reference": as_float32(reference)} if live else {}
    sums, grads = sums_and_gradients(preference(config), as_float32(model), frozen, batch)
    expected = expected_sums(config, model, reference, pairs)
    assert sums.loss_sum == pytest.approx(expected.pop("loss"), rel=1e-5)
    assert sums.weight_sum == len(pairs)
    assert set(sums.metric_sums) == set(expected)
    for metric, (total, count) in sums.metric_sums.items():
        assert count == len(pairs)
        assert total == pytest.approx(expected[metric], rel=1e-5, abs=1e-5), metric

    def loss_sum(model):
        return expected_sums(config, model, reference, pairs)["loss"]

    assert_close(grads, numeric_gradient(loss_sum, model), rel=2e-5)


@pytest.mark.parametrize("name", ["ipo", "orpo"])
def test_loss_does_not_depend_on_packing_padding_or_microbatches(name):
    pairs = draw_pairs(6)
    loss, model = preference(CONFIGS[name]), as_float32(draw_model(0))
    each = [sums_and_gradients(loss, model, {}, make_rows([[p]], 80, 13)) for p in pairs]
    alone = jax.tree.map(lambda *x: sum(x), *each)

    @hypothesis.given(st.permutations(pairs), st.integers(0, 6))
    @hypothesis.settings(max_examples=20)
    def check(order, cut):
        rows = [make_rows([part], 80, 13) for part in (order[:cut], order[cut:])]
        whole = jax.tree.map(lambda *x: np.concatenate(x), *rows)
        parts = [sums_and_gradients(loss, model, {}, row) for row in rows]
        assert_close(sums_and_gradients(loss, model, {}, whole), alone, rel=1e-5)
        assert_close(jax.tree.map(jnp.add, *parts), alone, rel=1e-5)

    check()


@pytest.mark.parametrize("name", ["dpo", "simpo, nll", "orpo"])
def test_bfloat16_is_near_float32(name):
    batch = make_rows([draw_pairs()], length=40, num_columns=10)
    low = cast(draw_model(0, recipe_name="bfloat16"), jnp.bfloat16)
    high = dataclasses.replace(cast(low, jnp.float32), recipe_name="float32")
    loss = preference(CONFIGS[name])
    expected = sums_and_gradients(loss, high, {}, batch)
    sums, grads = sums_and_gradients(loss, low, {}, batch)
    assert sums.loss_sum.dtype == jnp.float32
    assert_close(sums, expected[0], rel=1e-4)  # the same weights; float32 logits
    assert_close(grads, expected[1], rel=2e-2)  # 8 bits of mantissa, a few times


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("live", [False, True], ids=["cached", "live"])
def test_first_loss_is_log_2_and_the_margin_zero(dtype, live):
    pairs = draw_pairs()
    batch = make_rows([pairs], length=40, num_columns=10)
    model = cast(draw_model(0, recipe_name=dtype), dtype)
    cached = quick(lambda model: answer_logprobs(model, batch, 1024))(model)
    frozen = {"reference": model} if live else {}
    sums, grads = sums_and_gradients(
        preference(PreferenceConfig()), model, frozen, batch._replace(reference=cached)
    )
    assert sums.loss_sum / sums.weight_sum == pytest.approx(math.log(2), abs=1e-6)
    means = {name: total / count for name, (total, count) in sums.metric_sums.items()}
    assert means["rewards/margin"] == pytest.approx(0, abs=1e-6)
    assert means["accuracy"] == 0.5
    assert means["gradient_weight"] == pytest.approx(0.5, abs=1e-6)
    assert any(np.asarray(g, np.float32).any() for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("kind", ["simpo", "cpo", "orpo"])
def test_kinds_without_reference_read_none(kind):
    config = PreferenceConfig(kind=kind)
    assert not config.needs_reference
    pairs = draw_pairs()
    batch = make_rows([pairs], length=40, num_columns=10)
    poisoned = batch._replace(reference=np.full_like(batch.reference, np.nan))
    model = as_float32(draw_model(0))
    frozen = {"reference": jax.tree.map(lambda x: x * jnp.nan, model)}
    clean = sums_and_gradients(preference(config), model, {}, batch)
    actual = sums_and_gradients(preference(config), model, frozen, poisoned)
    assert jax.tree.all(jax.tree.map(np.array_equal, actual, clean))


@pytest.mark.parametrize("name", ["dpo, forward_kl", "dpo, js", "dpo, alpha", "robust", "apo_down"])
def test_answers_far_from_the_reference_give_finite_losses_and_gradients(name):
    pairs = draw_pairs()
    batch = make_rows([pairs], length=40, num_columns=10)
    loss = preference(CONFIGS[name])
    for reference in (5e3, -5e3):
        batch = batch._replace(reference=np.where(batch.reference != 0, reference, 0.0).astype("f"))
        sums, grads = sums_and_gradients(loss, as_float32(draw_model(0)), {}, batch)
        assert np.isfinite(sums.loss_sum)
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_odds_of_a_certain_answer_are_finite():
    pairs = draw_pairs()
    batch = make_rows([pairs], length=40, num_columns=10)
    certain = batch._replace(tokens=batch.tokens._replace(targets=batch.tokens.targets * 0 + 3))
    model = as_float32(draw_model(0))
    model = dataclasses.replace(model, states_VD=model.states_VD * 0 + 1)
    model.w_DV[:] = 50 * (np.arange(V) == 3)
    sums, grads = sums_and_gradients(preference(PreferenceConfig(kind="orpo")), model, {}, certain)
    assert np.isfinite(sums.loss_sum)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_batch_without_pairs_gives_zeros():
    batch = make_rows([[]], length=8, num_columns=2)
    sums, grads = sums_and_gradients(
        preference(PreferenceConfig()), as_float32(draw_model(0)), {}, batch
    )
    assert not any(np.asarray(x).any() for x in jax.tree.leaves((sums, grads)))


@pytest.mark.parametrize("size", [1, 3])
def test_group_that_is_no_pair_makes_the_loss_nan(size):
    rng = np.random.default_rng(0)
    groups = [draw_pairs(1)[0], [draw_answer(rng) for _ in range(size)]]
    batch = make_rows([groups], length=40, num_columns=6)
    sums, _ = sums_and_gradients(
        preference(PreferenceConfig()), as_float32(draw_model(0)), {}, batch
    )
    assert np.isnan(sums.loss_sum)


def test_target_outside_the_vocabulary_is_nan():
    batch = make_rows([draw_pairs(2)], length=40, num_columns=4)
    batch.tokens.targets[batch.tokens.loss_weights != 0] = V
    sums, _ = sums_and_gradients(
        preference(PreferenceConfig()), as_float32(draw_model(0)), {}, batch
    )
    assert np.isnan(sums.loss_sum)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "ppo"}, r"^kind='ppo' must be one of dpo, robust, .*\.$"),
        ({"beta": 0.0}, r"^beta=0\.0 must be > 0\.$"),
        ({"beta": -1.0}, r"^beta=-1\.0 must be >= 0 and finite\.$"),
        ({"nll_weight": math.inf}, r"^nll_weight=inf must be >= 0 and finite\.$"),
        ({"label_smoothing": 0.5}, r"^label_smoothing=0\.5 must be in \[0, 0\.5\)\.$"),
        ({"divergence_alpha": 1.0}, r"^divergence_alpha=1\.0 must be in \(0, 1\)\.$"),
        ({"chunk_tokens": 0}, r"^chunk_tokens=0 must be >= 1\.$"),
        (
            {"kind": "ipo", "label_smoothing": 0.1},
            r"^label_smoothing=0\.1 has no meaning with kind='ipo' and divergence='reverse_kl'; ",
        ),
        ({"kind": "simpo", "divergence": "js"}, "^divergence=js has no meaning with kind='simpo'"),
        ({"kind": "kto", "length_normalised": True}, "^length_normalised=True has no meaning"),
        ({"divergence": "js", "length_normalised": True}, "^length_normalised=True has no meaning"),
        ({"gamma": 0.5}, "^gamma=0.5 has no meaning with kind='dpo'"),
        ({"divergence_alpha": 0.3}, "^divergence_alpha=0.3 has no meaning with kind='dpo'"),
        ({"kind": "ipo", "desirable_weight": 2.0}, "^desirable_weight=2.0 has no meaning with"),
        ({"undesirable_weight": 0.0}, "^undesirable_weight=0.0 has no meaning with kind='dpo'"),
        ({"kind": "kto", "nll_weight": 0.1}, "^nll_weight=0.1 has no meaning with kind='kto'"),
    ],
)
def test_config_refuses_values_without_meaning(changes, message):
    with pytest.raises(ValueError, match=message):
        PreferenceConfig(**changes)


@pytest.mark.parametrize(
    ("kind", "needs_reference", "answers"),
    [
        ("dpo", True, "pairs"),
        ("simpo", False, "pairs"),
        ("kto", True, "labels"),
        ("apo_zero_unpaired", True, "labels"),
    ],
)
def test_config_says_what_the_loss_reads(kind, needs_reference, answers):
    config = PreferenceConfig(kind=kind)
    assert config.needs_reference == needs_reference
    assert config.answers == answers


@pytest.mark.parametrize(("recipe", "tolerance"), [("float32", 1e-6), ("bfloat16", 1e-3)])
def test_first_loss_of_a_decoder_with_dropout_is_log_2_and_moves_after_an_update(recipe, tolerance):
    """Against a live and a cached reference alike (DPO-01)."""
    config = ModelConfig(
        vocab_size=V, d_model=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=16,
        dropout=0.1,
    )  # fmt: skip
    made = filled(lambda: Decoder(config, rngs=nnx.Rngs(0), recipe=get_recipe(recipe)))
    structure, params = nnx.split(made)
    loss = preference(PreferenceConfig())
    batch = jax.tree.map(jnp.asarray, make_rows([draw_pairs()], 40, 10))

    @quick
    def cache(params):
        return answer_logprobs(nnx.merge(structure, params), batch, 1024)

    @functools.partial(quick, static_argnames="live")
    def step(params, reference, batch, live):
        frozen = {"reference": nnx.merge(structure, reference)} if live else {}

        def mean(params):
            sums = loss(nnx.merge(structure, params), frozen, batch, jax.random.key(0))
            return sums.loss_sum / sums.weight_sum, sums

        (value, sums), grads = jax.value_and_grad(mean, has_aux=True)(params)
        margin, count = sums.metric_sums["rewards/margin"]
        return value, margin / count, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    for live in (False, True):
        given = batch if live else batch._replace(reference=cache(params))
        first, margin, updated = step(params, params, given, live)
        assert first == pytest.approx(math.log(2), abs=tolerance)
        assert margin == pytest.approx(0, abs=tolerance)
        second, margin, _ = step(updated, params, given, live)
        assert second < first - 5e-3
        assert margin > 1e-2
