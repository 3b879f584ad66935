"""Distillation from what a teacher said and was stored, without the teacher."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.losses.distill import DistillConfig, distill
from jaxtrain.losses.teacher import topk_logprobs
from jaxtrain.types import TeacherBatch
from tests.lora_runs import quick_jit
from tests.losses.distilling import (
    B,
    T,
    V,
    draw,
    max_error,
    run,
)
from tests.losses.given_states import GivenStates


def store(config, k, teacher, batch, dtype=np.float32):
    model = GivenStates(None, jnp.asarray(teacher[1], jnp.float32), vocab_size=V)
    h = jnp.asarray(teacher[0], jnp.float32)
    compute = quick_jit(lambda h: topk_logprobs(model, h, k, config.temperature))
    ids, logprobs = compute(h)
    return TeacherBatch(batch, np.array(ids), np.array(logprobs).astype(dtype))


def run_stored(config, student, batch):
    """Without a teacher."""

    def loss_sum(student):
        model = GivenStates(*student, vocab_size=V)
        sums = distill(config)(model, {}, batch, None)
        return sums.loss_sum, sums

    student = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), student)
    (_, sums), grads = quick_jit(jax.value_and_grad(loss_sum, has_aux=True))(student)
    return sums, grads


@pytest.mark.parametrize(("kind", "rest"), [("forward_kl", "renormalized"), ("reverse_kl", "tail")])
def test_a_stored_teacher_is_worth_the_one_that_is_run(kind, rest):
    student, teacher, batch = draw()
    config = DistillConfig(divergence=kind, temperature=2.0, rest=rest, chunk_tokens=40)
    expected, expected_grads = run(dataclasses.replace(config, top_k=4), student, teacher, batch)
    sums, grads = run_stored(config, student, store(config, 4, teacher, batch))
    assert sums.loss_sum == pytest.approx(float(expected.loss_sum), rel=1e-5)
    for name, (total, _) in sums.metric_sums.items():
        assert total == pytest.approx(float(expected.metric_sums[name][0]), rel=1e-5), name
    assert set(expected.metric_sums) - set(sums.metric_sums) == {"teacher_nll"}
    for actual, x in zip(grads, expected_grads, strict=True):
        assert max_error(actual, np.asarray(x)) < 1e-5


def test_rows_filled_up_with_minus_infinity_are_worth_their_entries_alone():
    """Two rows of 3 and 8 places, filled up to 8."""
    config = DistillConfig(divergence="reverse_kl", chunk_tokens=4)
    student, teacher, batch = draw(8, rows=2, weights=np.ones((2, 8)))
    batch.loss_weights[0, 3:] = 0
    both = store(config, 4, teacher, batch)
    both.teacher_logprobs[0, 3:] = -np.inf
    both.teacher_ids[0, 3:] = 0
    sums, (dh, dw) = run_stored(config, student, both)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((sums, dh, dw)))
    total, total_dw = 0.0, 0.0
    for row, length in enumerate((3, 8)):
        alone = jax.tree.map(lambda x, row=row, n=length: x[row : row + 1, :n], both)
        states = student[0][row : row + 1, :length]
        one, (dh_alone, dw_alone) = run_stored(config, (states, student[1]), alone)
        np.testing.assert_allclose(dh[row, :length], dh_alone[0], atol=1e-6)
        np.testing.assert_array_equal(dh[row, length:], 0)
        total, total_dw = total + one.loss_sum, total_dw + dw_alone
    assert sums.loss_sum == pytest.approx(float(total), rel=1e-6)
    np.testing.assert_allclose(dw, total_dw, atol=1e-5)


def test_a_trained_place_of_which_nothing_was_stored_makes_the_loss_nan():
    config = DistillConfig()
    student, teacher, batch = draw(weights=np.ones((B, T)))
    stored = store(config, 4, teacher, batch)
    stored.teacher_logprobs[1, 2] = -np.inf
    sums, _ = run_stored(config, student, stored)
    assert np.isnan(sums.loss_sum)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 2}, r"^config\.loss\.top_k=2 is of a teacher that is run; .* the 4 ids count"),
        ({"hidden_weight": 0.5}, r"^config\.loss\.hidden_weight=0\.5 needs the teacher itself"),
    ],
)
def test_what_a_stored_teacher_cannot_give_is_refused(changes, message):
    student, teacher, batch = draw()
    stored = store(DistillConfig(), 4, teacher, batch)
    with pytest.raises(ValueError, match=message):
        run_stored(DistillConfig(**changes), student, stored)
