"""Divergences against sums over explicit outcomes in float64, their slopes by complex steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.losses.divergence import DIVERGENCES, Outcomes, compare, log_sum_exp

V = 7
STEP = 1e-30  # of the imaginary part: its square is 0


@functools.partial(jax.jit, static_argnums=(0, 1))
def found(kind, beta, teacher, scaled):
    return compare(kind, beta, teacher, scaled)


def given_value(kind, beta, p, q):
    """By the definition; p and q are probabilities of outcomes."""

    def kl(a, b):
        kept = np.real(a) > 0
        return np.sum(a[kept] * np.log(a[kept] / b[kept]))

    if kind == "forward_kl":
        return kl(p, q)
    if kind == "reverse_kl":
        return kl(q, p)
    m = beta * p + (1 - beta) * q
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


def softmax(x):
    e = np.exp(x - np.max(np.real(x)))
    return e / e.sum()


def outcomes(probabilities, listed, has_tail):
    kept = probabilities[listed]
    # Summed, as 1 - Σ loses what a small tail has.
    others = probabilities[~listed].sum()
    return np.append(kept, others) if has_tail else kept / kept.sum()


def reference(kind, beta, p, scaled, listed, has_tail):
    def value(scaled):
        q = softmax(scaled)
        return given_value(kind, beta, outcomes(p, listed, has_tail), outcomes(q, listed, has_tail))

    steps = STEP * 1j * np.eye(len(scaled))
    return value(scaled), np.array([np.imag(value(scaled + step)) / STEP for step in steps])


def as_outcomes(p, listed, has_tail):
    kept = np.where(listed, p if has_tail else p / p[listed].sum(), 0.0)
    with np.errstate(divide="ignore"):
        logprobs = np.log(kept)
    tail = jnp.full((1, 1, 1), np.log(p[~listed].sum()), jnp.float32) if has_tail else None
    return Outcomes(
        jnp.asarray(listed)[None, None], jnp.asarray(logprobs, jnp.float32)[None, None], tail
    )


@pytest.mark.parametrize("has_tail", [False, True])
@pytest.mark.parametrize(
    ("kind", "beta"), [*((kind, 0.5) for kind in DIVERGENCES), ("jensen_shannon", 0.1)]
)
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.1, 1.0, 5.0]))
def test_value_and_slope_equal_those_over_explicit_outcomes(kind, beta, has_tail, seed, spread):
    rng = np.random.default_rng(seed)
    p, scaled = softmax(spread * rng.normal(size=V)), spread * rng.normal(size=V)
    listed = np.arange(V) < rng.integers(1, V)
    rng.shuffle(listed)
    value, slope = reference(kind, beta, p, scaled, listed, has_tail)
    kl, _ = reference("forward_kl", beta, p, scaled, listed, has_tail)
    actual = found(
        kind, beta, as_outcomes(p, listed, has_tail), jnp.asarray(scaled, jnp.float32)[None, None]
    )
    assert actual.divergence_BT1.item() == pytest.approx(value, rel=1e-5, abs=1e-6)
    assert actual.forward_kl_BT1.item() == pytest.approx(kl, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(actual.slope_BTV[0, 0], slope, rtol=1e-4, atol=3e-6)


@pytest.mark.parametrize(("beta", "limit"), [(1e-3, "forward_kl"), (1 - 1e-3, "reverse_kl")])
def test_jensen_shannon_tends_to_the_divergences_of_kullback_and_leibler(beta, limit):
    rng = np.random.default_rng(0)
    teacher = as_outcomes(softmax(rng.normal(size=V)), np.ones(V, bool), False)
    scaled = jnp.asarray(rng.normal(size=V), jnp.float32)[None, None]
    mixed, pure = found("jensen_shannon", beta, teacher, scaled), found(limit, 0.5, teacher, scaled)
    share = min(beta, 1 - beta)
    assert mixed.divergence_BT1.item() / share == pytest.approx(
        pure.divergence_BT1.item(), rel=5e-3
    )
    np.testing.assert_allclose(mixed.slope_BTV / share, pure.slope_BTV, rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_equal_distributions_have_no_divergence_and_no_slope(kind):
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 1, V)), jnp.float32)
    same = Outcomes(jnp.ones((1, 1, V), bool), logits - log_sum_exp(logits), None)
    actual = found(kind, 0.3, same, logits)
    assert abs(actual.divergence_BT1.item()) < 1e-6
    np.testing.assert_allclose(actual.slope_BTV, 0, atol=1e-6)


@pytest.mark.parametrize("kind", ["forward_kl", "jensen_shannon"])
def test_an_id_that_the_teacher_excludes_adds_what_its_limit_is(kind):
    """p = 0, q = 1/2 of two ids, of which the other is certain."""
    teacher = Outcomes(jnp.ones((1, 1, 2), bool), jnp.asarray([[[0.0, -jnp.inf]]]), None)
    actual = found(kind, 0.5, teacher, jnp.zeros((1, 1, 2)))
    expected = given_value(kind, 0.5, np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    assert actual.divergence_BT1.item() == pytest.approx(expected, rel=1e-6)
    assert np.isfinite(actual.slope_BTV).all()


def test_a_student_that_may_say_what_the_teacher_excludes_is_infinitely_far_in_reverse():
    teacher = Outcomes(jnp.ones((1, 1, 2), bool), jnp.asarray([[[0.0, -jnp.inf]]]), None)
    assert found("reverse_kl", 0.5, teacher, jnp.zeros((1, 1, 2))).divergence_BT1.item() == np.inf


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_ids_that_are_not_shared_take_no_part(kind):
    rng = np.random.default_rng(1)
    p, scaled = softmax(rng.normal(size=V)), rng.normal(size=V)
    value, slope = reference(kind, 0.5, p, scaled, np.ones(V, bool), False)
    padded = Outcomes(
        jnp.asarray(np.arange(V + 3) < V)[None, None],
        jnp.asarray(np.append(np.log(p), [-np.inf] * 3), jnp.float32)[None, None],
        None,
    )
    wider = jnp.asarray(np.append(scaled, [-np.inf] * 3), jnp.float32)[None, None]
    actual = found(kind, 0.5, padded, wider)
    assert actual.divergence_BT1.item() == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(actual.slope_BTV[0, 0, :V], slope, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(actual.slope_BTV[0, 0, V:], 0)


@pytest.mark.parametrize("x", [[-np.inf] * 3, [1e4, 1e4, -1e4], [-1e4, -np.inf, -1e4]])
def test_log_sum_exp_is_safe_at_its_ends(x):
    with np.errstate(divide="ignore"):
        expected = np.logaddexp.reduce(np.array(x))
    assert log_sum_exp(jnp.asarray(x, jnp.float32)).item() == pytest.approx(expected, rel=1e-6)
