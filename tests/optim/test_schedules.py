import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.optim.config import OptimConfig
from jaxtrain.optim.schedules import check_branch, describe, make_schedule, phases

PEAK = 3e-3
NUM_STEPS = 60
WARMUP = 7
TOKENS = 1000
COUNTS = np.arange(NUM_STEPS + 10)  # beyond the end too: a longer evaluation must not rise again


def rates(num_steps=NUM_STEPS, tokens=TOKENS, **values):
    """The schedule at every count."""
    config = OptimConfig(**{"lr": PEAK, "warmup_steps": WARMUP, "decay_steps": None, **values})
    schedule = make_schedule(config, phases(config, num_steps, tokens), tokens)
    return np.asarray(schedule(jnp.asarray(COUNTS, jnp.int32)))


def closed_form(fall, warmup=WARMUP):
    """peak · min(1, (c + 1) / W) · fall(c) in float64, count by count."""
    values = []
    for c in COUNTS.tolist():
        rise = 1.0 if c >= warmup else (c + 1) / warmup
        values.append(PEAK * rise * fall(c))
    return np.array(values)


def part(c, start, end=NUM_STEPS):
    """The finished part of a decay from start to end."""
    return min(1.0, max(0.0, (c - start) / (end - start)))


DECAY = 18  # wsd: round(0.3 * 60)
START = NUM_STEPS - DECAY
FALLS = {
    "constant": lambda c: 1.0,
    "linear": lambda c: 0.1 + 0.9 * (1 - part(c, WARMUP)),
    "cosine": lambda c: 0.1 + 0.9 * (1 + np.cos(np.pi * part(c, WARMUP))) / 2,
    "inverse_sqrt": lambda c: np.sqrt(WARMUP / max(c, WARMUP)),
    "wsd/linear": lambda c: 0.1 + 0.9 * (1 - part(c, START)),
    "wsd/cosine": lambda c: 0.1 + 0.9 * (1 + np.cos(np.pi * part(c, START))) / 2,
    "wsd/1-sqrt": lambda c: 0.1 + 0.9 * (1 - np.sqrt(part(c, START))),
}


@pytest.mark.parametrize("name", FALLS)
def test_schedule_equals_its_closed_form_at_every_count(name):
    schedule, _, shape = name.partition("/")
    values = rates(schedule=schedule, decay_shape=shape or "linear", decay_frac=0.3)
    # 3e-7: float32 rounding of a handful of operations, relative to the peak near the end
    np.testing.assert_allclose(values, closed_form(FALLS[name]), rtol=3e-6, atol=3e-7 * PEAK)
    assert values.dtype == np.float32


def test_first_update_moves_and_warm_up_ends_on_the_peak():
    values = rates(schedule="linear")
    assert values[0] == pytest.approx(PEAK / WARMUP)
    assert values[WARMUP - 1] == pytest.approx(PEAK)
    assert values[WARMUP] == pytest.approx(PEAK)
    assert values[WARMUP + 1] < PEAK


def test_last_update_is_not_spent_at_rate_zero():
    values = rates(schedule="wsd", decay_steps=10, decay_shape="linear", final_lr_frac=0.0)
    assert values[NUM_STEPS - 1] == pytest.approx(PEAK / 10)
    assert values[NUM_STEPS] == 0


def test_wsd_is_stable_up_to_the_decay_and_falls_right_after():
    values = rates(schedule="wsd", decay_steps=10)
    np.testing.assert_allclose(values[WARMUP : NUM_STEPS - 10 + 1], PEAK, rtol=1e-6)
    assert values[NUM_STEPS - 9] < 0.8 * PEAK  # 1 - sqrt(1 / 10) = 0.68


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "linear", "constant", "inverse_sqrt"])
def test_no_warm_up_starts_on_the_peak(schedule):
    assert rates(schedule=schedule, warmup_steps=0)[0] == pytest.approx(PEAK)


def test_schedule_is_the_same_under_jit_with_a_traced_count():
    config = OptimConfig(lr=PEAK, warmup_steps=WARMUP)
    schedule = make_schedule(config, phases(config, NUM_STEPS, TOKENS), TOKENS)
    traced = jax.jit(schedule)(jnp.int32(11))
    assert traced.dtype == jnp.float32
    assert traced.shape == ()
    np.testing.assert_allclose(traced, schedule(11), rtol=1e-6)


def test_token_lengths_round_up_to_whole_steps():
    config = OptimConfig(schedule="wsd", warmup_tokens=6_001, decay_tokens=9_001)
    assert phases(config, NUM_STEPS, TOKENS) == (7, NUM_STEPS - 10, NUM_STEPS)


def test_token_lengths_that_divide_need_no_extra_step():
    config = OptimConfig(schedule="wsd", warmup_tokens=6_000, decay_tokens=9_000)
    assert phases(config, NUM_STEPS, TOKENS) == (6, NUM_STEPS - 9, NUM_STEPS)


def test_token_lengths_follow_a_batch_size_ramp():
    ramp = ((0, 100), (10, 1000))  # 1 000 tokens in the first 10 steps, 50 000 in the other 50
    config = OptimConfig(schedule="wsd", warmup_tokens=3_000, decay_tokens=40_500)
    assert phases(config, NUM_STEPS, ramp) == (12, NUM_STEPS - 41, NUM_STEPS)
    config = OptimConfig(schedule="wsd", decay_tokens=50_050)
    assert phases(config, NUM_STEPS, ramp) == (0, NUM_STEPS - 51, NUM_STEPS)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_batch_rule_scales_the_peak(rule, factor):
    values = rates(schedule="constant", lr_batch_rule=rule, lr_base_batch_tokens=TOKENS // 4)
    assert values[-1] == pytest.approx(PEAK * factor)


def test_batch_rule_follows_a_ramp_step_by_step():
    values = rates(
        tokens=((0, 250), (20, 1000), (40, 2250)),
        schedule="constant",
        warmup_steps=0,
        lr_batch_rule="sqrt",
        lr_base_batch_tokens=1000,
    )
    expected = PEAK * np.repeat([0.5, 1.0, 1.5], [20, 20, len(COUNTS) - 40])
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"warmup_steps": 2000},
            "warmup_steps=2000 must be < config.loop.num_steps=60; lower it or train longer.",
        ),
        (
            {"warmup_steps": 60},
            "warmup_steps=60 must be < config.loop.num_steps=60; lower it or train longer.",
        ),
        (
            {"warmup_tokens": 60_000},
            "warmup_tokens=60000 (60 steps) must be < config.loop.num_steps=60; lower it or train "
            "longer.",
        ),
        (
            {"schedule": "wsd", "warmup_steps": 10, "decay_steps": 51},
            "decay_steps=51 must be <= config.loop.num_steps=60 - 10 of warm-up; lower it or train "
            "longer.",
        ),
        (
            {"schedule": "wsd", "decay_tokens": 60_001},
            "decay_tokens=60001 (61 steps) must be <= config.loop.num_steps=60 - 0 of warm-up",
        ),
        (
            {"schedule": "wsd", "warmup_steps": 10, "decay_frac": 0.9},
            "decay_frac=0.9 (54 steps) must be <= config.loop.num_steps=60 - 10 of warm-up",
        ),
    ],
)
def test_lengths_that_do_not_fit_the_run_are_refused(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        phases(OptimConfig(**values), NUM_STEPS, TOKENS)


def test_lengths_that_just_fit_are_accepted():
    config = OptimConfig(schedule="wsd", warmup_steps=10, decay_steps=50)
    assert phases(config, NUM_STEPS, TOKENS) == (10, 10, NUM_STEPS)
    assert phases(OptimConfig(warmup_steps=59), NUM_STEPS, TOKENS).warmup_end == 59


def test_decay_length_does_not_matter_outside_wsd():
    assert phases(OptimConfig(decay_steps=10**6), NUM_STEPS, TOKENS) == (0, 0, NUM_STEPS)


def test_branch_continues_the_trunk_and_falls_from_its_checkpoint():
    trunk = rates(num_steps=200, schedule="wsd", decay_steps=40)
    branched = rates(num_steps=30 + 12, schedule="wsd", decay_steps=12)
    np.testing.assert_array_equal(branched[: 30 + 1], trunk[: 30 + 1])
    assert branched[31] < trunk[31]


def test_branch_from_the_last_stable_checkpoint_is_accepted_and_from_a_later_one_refused():
    config = OptimConfig(schedule="wsd", decay_steps=20)
    at = phases(config, NUM_STEPS, TOKENS)
    check_branch(config, at, 40)
    message = (
        "decay_steps=20 must be <= config.loop.num_steps=60 - 41 updates in the checkpoint that "
        "config.init.from names, or the rate would jump; lower it, train longer or branch from an "
        "earlier checkpoint."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_branch(config, at, 41)


def test_description_names_every_phase():
    config = OptimConfig(lr=PEAK, schedule="wsd", warmup_tokens=6_001, decay_steps=10)
    text = describe(config, phases(config, NUM_STEPS, TOKENS), TOKENS)
    assert text == (
        "lr 0.003 (wsd, in applied updates); warm-up to 7; 1-sqrt decay from 50 to 0.1 of it at 60"
    )


def test_description_shows_the_scaled_rate():
    config = OptimConfig(
        lr=PEAK, schedule="constant", lr_batch_rule="linear", lr_base_batch_tokens=500
    )
    ramp = ((0, 500), (5, 1000))
    assert describe(config, phases(config, NUM_STEPS, ramp), ramp) == (
        "lr 0.003, 0.006 from 5 (constant, in applied updates); scaled from 0.003 at 500 tokens "
        "per step by the linear rule"
    )
