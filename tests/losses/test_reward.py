import functools
import itertools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import quick
from hypothesis import strategies as st

from jaxtrain.losses.reward import (
    RewardConfig,
    answer_scores,
    process_reward,
    reward,
    segment_ends,
)
from tests.losses.answer_rows import (
    assert_close,
    cast,
    draw_answer,
    draw_model,
    make_rows,
    numeric_gradient,
)


def run(loss, model, batch):
    """Compiled sums and gradients."""
    return _compiled(loss, cast(model, "float32"), batch)


@functools.partial(quick, static_argnums=0)
def _compiled(loss, model, batch):
    def loss_sum(model):
        sums = loss(model, {}, batch, None)
        return sums.loss_sum, sums

    grads, sums = jax.grad(loss_sum, has_aux=True)(model)
    return sums, grads


def draw_groups(sizes, seed=0, values=False):
    rng = np.random.default_rng(seed)
    groups = [[draw_answer(rng) for _ in range(size)] for size in sizes]
    if values:  # of the best answer: a pair's margin
        for group in groups:
            group[0] = type(group[0])(group[0].ids, group[0].prompt_len, float(rng.uniform(0, 2)))
    return groups


def score(model, answer):
    return model.states_VD[answer.ids[-1]] @ model.w_D


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def expected_sums(config, model, groups):
    """As (sum, count), list by list and pair by pair in float64."""
    sums = {}

    def add(name, x):
        total, count = sums.get(name, (0, 0))
        sums[name] = total + x, count + 1

    for group in groups:
        s = [score(model, answer) for answer in group]
        if len(s) == 2:
            margin = config.margin_scale * (group[0].value - group[1].value)
            loss = -math.log(sigmoid(s[0] - s[1] - margin))
        else:
            loss = -sum(math.log(math.exp(s[i]) / sum(map(math.exp, s[i:]))) for i in range(len(s)))
        add("loss", loss + config.centring * (2 * np.mean(s)) ** 2)
        for better, worse in itertools.combinations(s, 2):
            p = sigmoid(better - worse)
            add("accuracy", 0.5 if better == worse else float(better > worse))
            add("margin", better - worse)
            add("confidence", max(p, 1 - p))
            add("brier", (1 - p) ** 2)
        add("rewards/chosen", s[0])
        for worse in s[1:]:
            add("rewards/rejected", worse)
    return sums


CASES = {
    "pairs": ("pairs", RewardConfig(), draw_groups([2, 2, 2])),
    "pairs with margins": ("pairs", RewardConfig(), draw_groups([2, 2, 2], values=True)),
    "centred": (
        "pairs",
        RewardConfig(margin_scale=0.5, centring=0.1),
        draw_groups([2, 2, 2], values=True),
    ),
    "ranks": ("ranks", RewardConfig(centring=0.1), draw_groups([4, 3, 5])),
    "pairs among ranks": ("ranks", RewardConfig(), draw_groups([2, 3, 2])),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_and_gradients_equal_float64_reference(name):
    answers, config, groups = CASES[name]
    model = draw_model(0)
    batch = make_rows([groups[:1], groups[1:]], length=60, num_columns=9)
    sums, grads = run(reward(config, answers), model, batch)
    expected = expected_sums(config, model, groups)
    loss, count = expected.pop("loss")
    assert sums.loss_sum == pytest.approx(loss, rel=1e-5)
    assert sums.weight_sum == count == len(groups)
    assert set(sums.metric_sums) == set(expected)
    for metric, (total, count) in sums.metric_sums.items():
        assert (total, count) == pytest.approx(expected[metric], rel=1e-5, abs=1e-5), metric
    numeric = numeric_gradient(lambda m: expected_sums(config, m, groups)["loss"][0], model)
    assert_close(grads, numeric, rel=2e-5)


def test_list_of_two_is_bradley_terry():
    groups = draw_groups([2, 2])
    batch = make_rows([groups], length=40, num_columns=4)
    ranks, pairs = (
        run(reward(RewardConfig(), x), draw_model(0), batch) for x in ("ranks", "pairs")
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, ranks, pairs))


def test_values_of_ranked_lists_are_no_margins():
    groups = draw_groups([3, 2], values=True)
    batch = make_rows([groups], length=40, num_columns=5)
    plain = batch._replace(values=batch.values * 0)
    with_values, without = (
        run(reward(RewardConfig(), "ranks"), draw_model(0), b) for b in (batch, plain)
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, with_values, without))


def test_loss_does_not_depend_on_packing_padding_or_microbatches():
    groups = draw_groups([2, 3, 4, 2])
    loss = reward(RewardConfig(centring=0.1), "ranks")
    model = draw_model(0)
    each = [run(loss, model, make_rows([[g]], 80, 13)) for g in groups]
    alone = jax.tree.map(lambda *x: sum(x), *each)

    @hypothesis.given(st.permutations(groups), st.integers(0, 4))
    @hypothesis.settings(max_examples=20)
    def check(order, cut):
        rows = [make_rows([part], 80, 13) for part in (order[:cut], order[cut:])]
        whole = jax.tree.map(lambda *x: np.concatenate(x), *rows)
        assert_close(run(loss, model, whole), alone, rel=1e-5)
        parts = [run(loss, model, row) for row in rows]
        assert_close(jax.tree.map(jnp.add, *parts), alone, rel=1e-5)

    check()


def test_score_is_that_of_the_last_token_of_each_segment_whatever_the_ids_say():
    """Ids of filler and of answers are the same: nothing but segment ids tells them apart."""
    batch = make_rows([draw_groups([2, 2])], length=30, num_columns=5)
    batch = batch._replace(tokens=batch.tokens._replace(inputs=batch.tokens.inputs * 0))
    ends = [np.flatnonzero(batch.tokens.segment_ids[0] == q + 1)[-1] for q in range(4)]

    class Positions:
        def hidden(self, inputs, positions, segment_ids, rng):
            return jnp.arange(30.0)[None, :, None]

        def scores(self, h_BTD):
            return h_BTD[..., 0]

    np.testing.assert_array_equal(answer_scores(Positions(), batch), [[*ends, 0]])


def test_segment_ends_are_before_a_change_of_segment_and_at_the_end_of_the_row():
    ends = segment_ends(np.array([[1, 1, 2, 3, 3, 0], [1, 2, 2, 2, 2, 2], [0] * 6]))
    np.testing.assert_array_equal(
        ends.astype(int), [[0, 1, 1, 0, 1, 0], [1, 0, 0, 0, 0, 1], [0] * 6]
    )


@pytest.mark.parametrize("answers", ["pairs", "ranks"])
def test_answer_without_another_makes_the_loss_nan(answers):
    batch = make_rows([draw_groups([2, 1])], length=30, num_columns=5)
    sums, _ = run(reward(RewardConfig(), answers), draw_model(0), batch)
    assert np.isnan(sums.loss_sum)


def test_batch_without_answers_gives_zeros():
    batch = make_rows([[]], length=8, num_columns=2)
    results = run(reward(RewardConfig(centring=0.1)), draw_model(0), batch)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(results))


def test_scores_far_apart_give_finite_losses_and_gradients():
    model = draw_model(0)
    model.w_D[:] *= 1e4
    sums, grads = run(reward(RewardConfig()), model, make_rows([draw_groups([2] * 4)], 60, 8))
    assert np.isfinite(sums.loss_sum)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def draw_steps():
    """Judged steps in two rows, about a third of the positions."""
    batch = make_rows([draw_groups([1, 1, 1]), draw_groups([1, 1], seed=1)], 20, 4)
    rng = np.random.default_rng(0)
    weights = ((batch.tokens.segment_ids > 0) & (rng.random((2, 20)) < 0.4)).astype(np.float32)
    labels = rng.integers(0, 2, (2, 20)).astype(np.int32)
    return batch._replace(tokens=batch.tokens._replace(loss_weights=weights, targets=labels))


def expected_step_sums(model, batch):
    sums = {name: [0, 0] for name in ("rewards/chosen", "rewards/rejected")}
    for b, t in zip(*np.nonzero(batch.tokens.loss_weights), strict=True):
        s = model.states_VD[batch.tokens.inputs[b, t]] @ model.w_D
        label = batch.tokens.targets[b, t]
        p = sigmoid(s)
        named = {
            "loss": -label * math.log(p) - (1 - label) * math.log(1 - p),
            "accuracy": float((s > 0) == label),
            "confidence": max(p, 1 - p),
            "brier": (p - label) ** 2,
            "rewards/chosen" if label else "rewards/rejected": s,
        }
        for name, x in named.items():
            entry = sums.setdefault(name, [0, 0])
            entry[0] += x
            entry[1] += 1
    return sums


def test_step_sums_and_gradients_equal_float64_reference():
    batch, model = draw_steps(), draw_model(0)
    sums, grads = run(reward(RewardConfig(), "steps"), model, batch)
    expected = expected_step_sums(model, batch)
    loss, count = expected.pop("loss")
    assert sums.loss_sum == pytest.approx(loss, rel=1e-5)
    assert sums.weight_sum == count > 5
    assert set(sums.metric_sums) == set(expected)
    for metric, actual in sums.metric_sums.items():
        assert actual == pytest.approx(expected[metric], rel=1e-5, abs=1e-5), metric
    numeric = numeric_gradient(lambda m: expected_step_sums(m, batch)["loss"][0], model)
    assert_close(grads, numeric, rel=2e-5)


def test_step_label_that_is_neither_0_nor_1_is_nan_unless_its_weight_is_zero():
    batch, model = draw_steps(), draw_model(0)
    loss = process_reward(RewardConfig())
    batch.tokens.targets[batch.tokens.loss_weights == 0] = 7
    assert np.isfinite(run(loss, model, batch)[0].loss_sum)
    batch.tokens.targets[batch.tokens.loss_weights != 0] = 7
    assert np.isnan(run(loss, model, batch)[0].loss_sum)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"centring": -0.1}, r"^centring=-0\.1 must be >= 0 and finite\.$"),
        ({"margin_scale": math.inf}, r"^margin_scale=inf must be >= 0 and finite\.$"),
    ],
)
def test_config_refuses_values_without_meaning(changes, message):
    with pytest.raises(ValueError, match=message):
        RewardConfig(**changes)


def test_centring_of_judged_steps_is_refused():
    with pytest.raises(ValueError, match=r"^config\.loss\.centring=0\.01 has no meaning for a"):
        reward(RewardConfig(centring=0.01), "steps")


def test_store_of_another_kind_is_refused():
    with pytest.raises(
        ValueError, match=r"^answers='labels' must be one of pairs, ranks, steps\.$"
    ):
        reward(RewardConfig(), "labels")
