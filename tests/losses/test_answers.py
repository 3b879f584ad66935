import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import quick

from jaxtrain.losses.answers import (
    answer_logprobs,
    find_pairs,
    group_starts,
    read_answers,
    wins,
)
from tests.losses.answer_rows import cast, draw_answer, draw_model, make_rows, token_logprobs


def draw():
    """A model, another, a row of five answers and the answers."""
    rng = np.random.default_rng(0)
    answers = [draw_answer(rng) for _ in range(5)]
    batch = make_rows([[answers[:2], answers[2:4], answers[4:]]], length=40, num_columns=6)
    return draw_model(0), draw_model(1), batch, answers


def expected(model, answers):
    return np.array([[*(token_logprobs(model, a).sum() for a in answers), 0]])  # and filler


def read(model, frozen, batch, with_reference=True):
    model, frozen = cast(model, np.float32), {k: cast(m, np.float32) for k, m in frozen.items()}
    return quick(
        lambda model, frozen: read_answers(model, frozen, batch, 16, with_reference=with_reference)
    )(model, frozen)


def test_sums_and_ratios_equal_those_of_each_answer_alone():
    model, other, batch, answers = draw()
    actual = read(model, {"reference": other}, batch)
    np.testing.assert_allclose(actual.logprobs, expected(model, answers), rtol=1e-5)
    ratios = expected(model, answers) - expected(other, answers)
    np.testing.assert_allclose(actual.logratios, ratios, rtol=1e-5)
    np.testing.assert_array_equal(actual.lengths, [[*(a.num_trained for a in answers), 0]])


def test_ratios_come_from_the_cache_where_no_reference_model_is_given():
    model, _, batch, answers = draw()
    cached = np.array([[*(a.reference for a in answers), 0]])
    actual = read(model, {}, batch)
    np.testing.assert_allclose(actual.logratios, expected(model, answers) - cached, rtol=1e-5)


def test_ratios_are_zero_where_no_reference_is_asked_for():
    model, other, batch, _ = draw()
    assert not np.asarray(read(model, {"reference": other}, batch, False).logratios).any()


def test_logprobs_for_the_cache_give_ratios_of_zero():
    model, _, batch, answers = draw()
    low = cast(model, np.float32)
    cached = quick(lambda model: answer_logprobs(model, batch, 16))(low)
    np.testing.assert_allclose(cached, expected(model, answers), rtol=1e-5)
    actual = read(model, {}, batch._replace(reference=cached))
    np.testing.assert_allclose(actual.logratios, 0, atol=1e-6)


def test_reference_gets_no_gradient():
    model, other, batch, _ = draw()

    def total(other):
        answers = read_answers(
            cast(model, np.float32), {"reference": other}, batch, 16, with_reference=True
        )
        return answers.logratios.sum()

    grads = quick(jax.grad(total))(cast(other, np.float32))
    assert not any(np.asarray(g).any() for g in jax.tree.leaves(grads))


def test_tokens_count_by_their_loss_weight():
    model, other, batch, _ = draw()
    doubled = batch._replace(
        tokens=batch.tokens._replace(loss_weights=2 * batch.tokens.loss_weights)
    )
    frozen = {"reference": other}
    for once, twice in zip(read(model, frozen, batch), read(model, frozen, doubled), strict=True):
        np.testing.assert_allclose(twice, 2 * np.asarray(once), rtol=1e-6)


@pytest.mark.parametrize(
    ("group_ids", "firsts"),
    [
        ([1, 1, 2, 2, 0, 0], [0, 2]),
        ([1, 1, 2, 2, 3, 3], [0, 2, 4]),
        ([1, 1, 0], [0]),
        ([0, 0], []),
        ([5, 5, 4, 4, 0], [0, 2]),
    ],
)
def test_pairs_are_groups_of_two(group_ids, firsts):
    x = np.arange(1.0, len(group_ids) + 1, dtype=np.float32)[None]
    pairs = find_pairs(jnp.asarray([group_ids]))
    assert pairs.count() == len(firsts)
    assert np.flatnonzero(pairs.is_pair[0]).tolist() == firsts
    chosen, rejected = pairs.split(jnp.asarray(x), filler=-1.0)
    for column in range(len(group_ids)):
        is_first = column in firsts
        assert chosen[0, column] == (column + 1 if is_first else -1)
        assert rejected[0, column] == (column + 2 if is_first else -1)
    assert pairs.total(jnp.asarray(x)) == sum(column + 1 for column in firsts)


@pytest.mark.parametrize("group_ids", [[1, 0], [1, 1, 1], [1, 1, 2], [1], [1, 2, 2]])
def test_group_that_is_no_pair_makes_sums_nan(group_ids):
    assert np.isnan(find_pairs(jnp.asarray([group_ids])).total(jnp.ones((1, len(group_ids)))))


def test_groups_start_where_the_number_changes():
    starts = group_starts(jnp.asarray([[3, 3, 1, 2, 2, 0], [0, 0, 0, 0, 0, 0]]))
    np.testing.assert_array_equal(starts[0], [True, False, True, True, False, False])
    assert not starts[1].any()


def test_tie_is_half_a_win():
    np.testing.assert_array_equal(wins(jnp.asarray([-2.0, 0.0, 1e-9])), [0, 0.5, 1])
