"""What a teacher says: computed or stored, of all ids or its likeliest."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.losses.teacher import (
    RENORMALIZED,
    TAIL,
    Sharing,
    computed,
    stored,
    topk_logprobs,
)
from tests.losses.given_states import GivenStates

B, T, D, V = 2, 5, 4, 12


def draw():
    rng = np.random.default_rng(0)
    return rng.normal(size=(B, T, D)), 2 * rng.normal(size=(D, V))


def logprobs_of(h, w, temperature=1.0, num_shared=V):
    logits = (h @ w)[..., :num_shared] / temperature
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def topk(k, temperature=1.0, **options):
    h, w = draw()
    model = GivenStates(None, jnp.asarray(w, jnp.float32), vocab_size=V)
    return topk_logprobs(model, jnp.asarray(h, jnp.float32), k, temperature, **options)


@pytest.mark.parametrize(
    ("k", "temperature", "num_shared", "chunk_tokens"),
    [(3, 1.0, None, 4), (3, 2.0, 9, 1000), (V, 1.0, None, 2), (1, 0.5, None, 6)],
)
def test_topk_are_the_likeliest_ids_and_their_logprobs(k, temperature, num_shared, chunk_tokens):
    h, w = draw()
    ids, logprobs = topk(k, temperature, num_shared=num_shared, chunk_tokens=chunk_tokens)
    expected = logprobs_of(h, w, temperature, num_shared or V)
    order = np.argsort(-expected, axis=-1)[..., :k]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(logprobs, np.take_along_axis(expected, order, -1), atol=2e-6)


def test_topk_knows_no_padding_of_the_vocabulary():
    h, w = draw()
    padded = jnp.asarray(np.concatenate([w, 50 * np.ones((D, 4))], 1), jnp.float32)
    model = GivenStates(None, padded, vocab_size=V)
    ids, logprobs = topk_logprobs(model, jnp.asarray(h, jnp.float32), 3)
    alone_ids, alone_logprobs = topk(3)
    np.testing.assert_array_equal(ids, alone_ids)
    np.testing.assert_allclose(logprobs, alone_logprobs, atol=1e-6)


@pytest.mark.parametrize(("k", "num_shared"), [(0, None), (V + 1, None), (9, 8), (3, V + 1)])
def test_topk_of_more_ids_than_there_are_is_refused(k, num_shared):
    with pytest.raises(ValueError, match=rf"^top_k={k} must be from 1 to the"):
        topk(k, num_shared=num_shared)


@pytest.mark.parametrize("rest", [TAIL, RENORMALIZED])
@pytest.mark.parametrize("k", [1, 3, V])
def test_stored_outcomes_are_those_computed(rest, k):
    h, w = draw()
    sharing = Sharing(V, V + 4, 2.0, rest)
    logits = jnp.asarray(h @ w, jnp.float32)
    here, _ = computed(sharing, logits, k)
    kept = stored(sharing, *topk(k, 2.0))
    np.testing.assert_array_equal(here.listed_BTV, kept.listed_BTV)
    np.testing.assert_allclose(here.logprobs_BTV, kept.logprobs_BTV, atol=2e-6)
    assert (here.tail_BT1 is None) == (kept.tail_BT1 is None) == (rest == RENORMALIZED or k == V)
    if here.tail_BT1 is not None:
        assert kept.tail_BT1 is not None
        np.testing.assert_allclose(np.exp(here.tail_BT1), np.exp(kept.tail_BT1), atol=1e-6)


@pytest.mark.parametrize("rest", [TAIL, RENORMALIZED])
@pytest.mark.parametrize("k", [2, 5, None])
def test_probabilities_of_all_outcomes_sum_to_one(rest, k):
    h, w = draw()
    found, _ = computed(Sharing(V, V, 1.0, rest), jnp.asarray(h @ w, jnp.float32), k)
    total = np.exp(np.asarray(found.logprobs_BTV, np.float64)).sum(-1)
    if found.tail_BT1 is not None:
        total += np.exp(np.asarray(found.tail_BT1, np.float64))[..., 0]
    np.testing.assert_allclose(total, 1, atol=1e-6)
    assert (np.asarray(found.listed_BTV).sum(-1) == (k or V)).all()


def test_of_equally_likely_ids_no_more_than_k_are_listed():
    found, _ = computed(Sharing(V, V, 1.0, TAIL), jnp.zeros((1, 1, V)), 3)
    assert np.asarray(found.listed_BTV).sum() == 3
    assert np.exp(np.asarray(found.tail_BT1)).item() == pytest.approx((V - 3) / V, rel=1e-6)


def one_place(ids, logprobs, rest=TAIL, num_shared=4):
    place = jnp.asarray([[ids]], jnp.int32), jnp.asarray([[logprobs]], jnp.float32)
    return stored(Sharing(num_shared, 6, 1.0, rest), *place)


@pytest.mark.parametrize("rest", [TAIL, RENORMALIZED])
def test_entries_of_minus_infinity_are_none_whatever_their_id(rest):
    entries = np.log([0.5, 0.25])
    found = one_place([2, 0, 2, -1, 99], [*entries, -np.inf, -np.inf, -np.inf], rest, 6)
    alone = one_place([2, 0], entries, rest, 6)
    for actual, expected in zip(found, alone, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 2.0**-24), ("float16", 2.0**-11)])
def test_sums_above_one_by_rounding_leave_the_least_tail(dtype, least):
    logprobs = jnp.asarray(np.log([[[0.6, 0.4008]]]), dtype)
    found = stored(Sharing(4, 6, 1.0, TAIL), jnp.asarray([[[0, 1]]], jnp.int32), logprobs)
    tail = np.exp(np.asarray(found.tail_BT1)).item()
    assert tail == pytest.approx(least, rel=2e-3)
    assert np.exp(np.asarray(found.logprobs_BTV)).sum() + tail == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("rest", [TAIL, RENORMALIZED])
@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        ([0, 1], [-np.inf, -np.inf]),  # nothing was stored
        ([0, 4], [-1.0, -1.0]),  # 4 is no id that is shared
        ([-1, 2], [-1.0, -1.0]),
        ([1, 2], [-1.0, np.nan]),
    ],
)
def test_a_place_that_says_nothing_or_nonsense_is_nan(ids, logprobs, rest):
    found = one_place(ids, logprobs, rest)
    assert np.isnan(np.asarray(found.logprobs_BTV)).any()
