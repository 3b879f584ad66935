import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxtrain.losses.preference import PreferenceConfig, preference
from tests.losses.answer_rows import (
    assert_close,
    cast,
    draw_answer,
    draw_model,
    make_rows,
    numeric_gradient,
    sums_and_gradients,
    token_logprobs,
)

CONFIG = PreferenceConfig(kind="kto", beta=0.3, desirable_weight=1.3, undesirable_weight=0.7)


def draw_groups(sizes, with_mismatched=True, seed=0):
    """Groups of judged answers, and behind them as many mismatched ones."""
    rng = np.random.default_rng(seed)
    return [
        [draw_answer(rng, value) for value in rng.choice([-1.0, 1.0], size)]
        + [draw_answer(rng) for _ in range(size if with_mismatched else 0)]
        for size in sizes
    ]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def expected_sums(config, model, groups, kl_of=None):
    """Loss and metrics as (sum, count) in float64; `kl_of`: the model that makes z0."""
    sums = {}

    def add(name, x):
        total, count = sums.get(name, (0, 0))
        sums[name] = total + x, count + 1

    for group in groups:
        ratios = [token_logprobs(model, a).sum() - a.reference for a in group]
        others = [
            token_logprobs(kl_of or model, a).sum() - a.reference for a in group if a.value == 0
        ]
        z0 = max(0.0, np.mean(others)) if others and config.kind == "kto" else 0.0
        for answer, ratio in zip(group, ratios, strict=True):
            if answer.value == 0:
                continue
            good = answer.value > 0
            weight = config.desirable_weight if good else config.undesirable_weight
            side = 1 if good else -1
            add("loss", weight * (1 - sigmoid(side * config.beta * (ratio - z0))))
            add("accuracy", float(side * (ratio - z0) > 0))
            add("kl", z0)
            name = "chosen" if good else "rejected"
            add(f"rewards/{name}", config.beta * ratio)
            add(f"logprobs/{name}", token_logprobs(model, answer).sum())
    return sums


CASES = {
    "kl": (CONFIG, draw_groups([2, 3])),
    "kl of many signs": (CONFIG, draw_groups([1, 1, 2, 2, 1], seed=3)),
    "no mismatched answers": (CONFIG, draw_groups([1, 1, 1, 1], with_mismatched=False)),
    "apo_zero_unpaired": (
        PreferenceConfig(kind="apo_zero_unpaired", beta=0.3),
        draw_groups([2, 3]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_and_gradients_equal_float64_reference(name):
    config, groups = CASES[name]
    model = draw_model(0)
    batch = make_rows([groups[:1], groups[1:]], length=64, num_columns=14)
    sums, grads = sums_and_gradients(preference(config), cast(model, "float32"), {}, batch)
    expected = expected_sums(config, model, groups)
    loss, num_judged = expected.pop("loss")
    assert sums.weight_sum == num_judged
    assert sums.loss_sum == pytest.approx(loss, rel=1e-5)
    assert set(expected) <= set(sums.metric_sums)
    for metric, (total, count) in sums.metric_sums.items():
        expected_total, expected_count = expected.get(metric, (0, 0))
        assert count == expected_count, metric
        assert total == pytest.approx(expected_total, rel=1e-5, abs=1e-5), metric
    fixed = draw_model(0)  # z0 carries no gradient

    def loss_sum(model):
        return expected_sums(config, model, groups, kl_of=fixed)["loss"][0]

    assert_close(grads, numeric_gradient(loss_sum, model), rel=2e-5)


def test_kl_estimates_of_the_cases_are_positive_and_cut_at_zero():
    kls = [expected_sums(CONFIG, draw_model(0), [g])["kl"][0] for g in CASES["kl of many signs"][1]]
    assert any(kl > 0 for kl in kls)
    assert any(kl == 0 for kl in kls)


def test_live_reference_equals_the_cached_one():
    model, reference = draw_model(0), draw_model(1)
    groups = draw_groups([2, 3])
    batch = make_rows([groups], length=64, num_columns=10)
    cached = [[token_logprobs(reference, a).sum() for group in groups for a in group]]
    batch = batch._replace(reference=np.array(cached, np.float32))
    loss, model = preference(CONFIG), cast(model, "float32")
    with_cache = sums_and_gradients(loss, model, {}, batch)
    frozen = {"reference": cast(reference, "float32")}
    assert_close(sums_and_gradients(loss, model, frozen, batch), with_cache, rel=1e-5)


def test_loss_does_not_depend_on_packing_padding_or_microbatches():
    groups = draw_groups([2, 1, 2, 1])
    loss, model = preference(CONFIG), cast(draw_model(0), "float32")
    each = [sums_and_gradients(loss, model, {}, make_rows([[g]], 80, 13)) for g in groups]
    alone = jax.tree.map(lambda *x: sum(x), *each)

    @hypothesis.given(st.permutations(groups), st.integers(0, 4))
    @hypothesis.settings(max_examples=20)
    def check(order, cut):
        rows = [make_rows([part], 80, 13) for part in (order[:cut], order[cut:])]
        whole = jax.tree.map(lambda *x: np.concatenate(x), *rows)
        parts = [sums_and_gradients(loss, model, {}, row) for row in rows]
        assert_close(sums_and_gradients(loss, model, {}, whole), alone, rel=1e-5)
        assert_close(jax.tree.map(jnp.add, *parts), alone, rel=1e-5)

    check()


def test_first_loss_is_half_of_each_weight():
    groups = draw_groups([2, 3])
    batch = make_rows([groups], length=64, num_columns=10)
    model = cast(draw_model(0), "float32")
    sums, _ = sums_and_gradients(preference(CONFIG), model, {"reference": model}, batch)
    weights = [1.3 if a.value > 0 else 0.7 for group in groups for a in group if a.value]
    assert sums.loss_sum == pytest.approx(sum(weights) / 2, rel=1e-6)
    assert sums.metric_sums["kl"][0] == 0
