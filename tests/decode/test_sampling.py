"""What may be drawn and how often, against closed forms in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.decode.sampling import Sampling, Settings, draw, filtered, penalize

PROBABILITIES = np.array([0.5, 0.3, 0.15, 0.05])


def settings(num=1, *, temperature=1.0, top_k=10**6, top_p=1.0, min_p=0.0, penalty=1.0) -> Settings:
    floats = [np.full(num, each, np.float32) for each in (temperature, top_p, min_p, penalty)]
    return Settings(floats[0], np.full(num, top_k, np.int32), *floats[1:])


def first(num: int, logits) -> np.ndarray:
    """All ids below `num`."""
    return np.arange(logits.shape[-1]) < num


def shares(num: int = 10_000, probabilities=PROBABILITIES, **options) -> np.ndarray:
    logits = jnp.broadcast_to(jnp.log(jnp.float32(probabilities)), (num, len(probabilities)))
    keys = jax.random.split(jax.random.key(0), num)
    seen = jnp.zeros(logits.shape, bool)
    ids = draw(
        logits, seen, settings(num, **options), keys, may_draw_V=first(9, logits), filters=True
    )
    return np.bincount(ids, minlength=len(probabilities)) / num


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_p": 0.75}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.85}, [0.526, 0.316, 0.158, 0]),
        ({"top_p": 0.5}, [1, 0, 0, 0]),
        ({"top_p": 1e-9}, [1, 0, 0, 0]),
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_k": 1}, [1, 0, 0, 0]),
        ({"min_p": 0.3}, [0.526, 0.316, 0.158, 0]),
        ({"min_p": 1.0}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, np.square([0.5, 0.3, 0.15, 0.05]) / 0.365),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"temperature": 1e-4}, [1, 0, 0, 0]),
        # Top-p works on the tempered probabilities: 0.685, 0.247, 0.062, 0.007.
        ({"temperature": 0.5, "top_p": 0.6}, [1, 0, 0, 0]),
        # … and on what top-k left: 0.625, 0.375.
        ({"top_k": 2, "top_p": 0.6}, [1, 0, 0, 0]),
    ],
)
def test_draws_come_from_the_stated_distribution(options, expected):
    np.testing.assert_allclose(shares(**options), expected, atol=0.015)


def test_penalty_minds_the_sign_and_counts_an_id_once():
    logits = jnp.array([[2.0, -2.0, 1.0]])
    seen = jnp.array([[True, True, False]])  # history 0, 0, 1
    np.testing.assert_array_equal(penalize(logits, seen, jnp.array([2.0])), [[1, -4, 1]])


def test_penalty_comes_before_temperature_zero():
    logits = jnp.array([[2.0, 1.5]])
    seen = jnp.array([[True, False]])
    keys = jax.random.split(jax.random.key(0), 1)
    chosen = settings(temperature=0.0, penalty=2.0)
    assert draw(
        logits, seen, chosen, keys, may_draw_V=first(2, logits), filters=False
    ).tolist() == [1]


@given(st.integers(0, 2**31), st.integers(1, 8), st.floats(0.05, 1), st.floats(0, 1))
def test_filtered_keeps_what_numpy_keeps(seed, top_k, top_p, min_p):
    logits = np.random.default_rng(seed).normal(size=(1, 8)).astype(np.float32) * 2
    found = np.asarray(filtered(logits, settings(top_k=top_k, top_p=top_p, min_p=min_p)))[0]
    order = np.argsort(-logits[0])
    order = order[:top_k]
    weight = np.exp(logits[0][order].astype(np.float64))
    share = weight / weight.sum()
    before = np.concatenate([[0], np.cumsum(share)[:-1]])
    kept = order[(before < top_p) & (share >= min_p * share[0])]
    close = np.abs(before - top_p).min() < 1e-5 or np.abs(share - min_p * share[0]).min() < 1e-5
    assert close or set(np.flatnonzero(np.isfinite(found))) == set(kept) | {order[0]}
    assert np.isfinite(found[order[0]])


@pytest.mark.parametrize("temperature", [1e-4, 1e-37, 1e-45])
@pytest.mark.parametrize("shift", [0.0, -90.0, 90.0])
def test_a_small_temperature_is_greedy_wherever_the_logits_lie(temperature, shift):
    logits = jnp.float32([[1.0, 3.0, 2.0, 2.9]] * 20) + shift
    keys, seen = jax.random.split(jax.random.key(0), 20), jnp.zeros((20, 4), bool)
    chosen = settings(20, temperature=temperature)
    for filters in (False, True):
        ids = draw(logits, seen, chosen, keys, may_draw_V=first(3, logits), filters=filters)
        assert ids.tolist() == [1] * 20


@pytest.mark.parametrize("temperature", [1e-3, 1e6])
@pytest.mark.parametrize("penalty", [1e-6, 1e6])
def test_settings_at_their_limits_draw_from_the_tokenizer(temperature, penalty):
    logits = jnp.float32([[-30.0, 0.0, 40.0, 99.0]] * 50)
    keys, seen = jax.random.split(jax.random.key(0), 50), jnp.ones((50, 4), bool)
    chosen = settings(50, temperature=temperature, penalty=penalty, top_p=1e-6, min_p=1.0)
    ids = np.asarray(draw(logits, seen, chosen, keys, may_draw_V=first(3, logits), filters=True))
    assert set(ids.tolist()) == {2}


def test_ties_at_a_border_are_kept_by_lower_id():
    logits = jnp.zeros((1, 6))
    found = np.isfinite(np.asarray(filtered(logits, settings(top_k=2)))[0])
    assert found.tolist() == [True, True, False, False, False, False]
    found = np.isfinite(np.asarray(filtered(logits, settings(top_p=0.4)))[0])
    assert found.tolist() == [True, True, True, False, False, False]
    assert np.isfinite(np.asarray(filtered(logits, settings(min_p=1.0)))).all()


def test_a_row_draws_the_same_alone_and_among_others():
    logits = jax.random.normal(jax.random.key(1), (3, 40))
    keys = jax.random.split(jax.random.key(2), 3)
    seen = jnp.zeros(logits.shape, bool)
    together = draw(
        logits, seen, settings(3, top_k=7), keys, may_draw_V=first(40, logits), filters=True
    )
    for row in range(3):
        one = slice(row, row + 1)
        alone = draw(
            logits[one],
            seen[one],
            settings(1, top_k=7),
            keys[one],
            may_draw_V=first(40, logits),
            filters=True,
        )
        assert alone[0] == together[row]


@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_ids_that_the_tokenizer_lacks_are_never_drawn(temperature):
    logits = jnp.zeros((500, 4)).at[:, 3].set(9.0)
    keys, seen = jax.random.split(jax.random.key(0), 500), jnp.zeros((500, 4), bool)
    chosen = settings(500, temperature=temperature)
    assert (
        int(draw(logits, seen, chosen, keys, may_draw_V=first(3, logits), filters=False).max()) <= 2
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0 must be from 0 to 1,000,000"),
        ({"temperature": float("nan")}, "temperature=nan must be from 0"),
        ({"temperature": 1e39}, r"temperature=1e\+39 must be from 0"),
        ({"top_k": 0}, "top_k=0 must be from 1"),
        ({"top_k": 2**31}, "top_k=2147483648 must be from 1"),
        ({"top_p": 0.0}, "top_p=0.0 must be above 0"),
        ({"min_p": 1.5}, "min_p=1.5 must be from 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0 must be from 1e-06 to 1,000,000"),
        ({"repetition_penalty": 1e300}, r"repetition_penalty=1e\+300 must be from"),
        ({"seed": -1}, "seed=-1 must be from 0"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_filters_says_whether_ids_are_cut_off():
    assert not Sampling(temperature=0.0, top_k=3).filters
    assert not Sampling(temperature=0.7).filters
    assert Sampling(top_p=0.9).filters
