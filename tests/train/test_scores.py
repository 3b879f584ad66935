import math

import jax
import numpy as np
import pytest

from jaxtrain.train import scores
from tests.train import stand_in
from tests.train.stand_in import HeldOut


@pytest.fixture(scope="module")
def program():
    return stand_in.program()


@pytest.mark.parametrize("batch_size", [1, 4, 7, 21, 32])
def test_held_out_scores_do_not_depend_on_the_batch_size(program, batch_size):
    state = program.init()
    sums = scores.total_sums(program, state, HeldOut(), batch_size)
    found = scores.mean_scores((sums, HeldOut.text_bytes))
    params = jax.device_get(state.params)
    whole = stand_in.batch(21, seed=99)
    expected = stand_in.reference_loss_and_grads(params, whole)[0]
    weight = whole.loss_weights.astype(np.float64).sum()
    assert found["loss"] == pytest.approx(expected, rel=1e-6)
    assert found["target_weight"] == pytest.approx(weight, rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(expected * weight / math.log(2) / 500, rel=1e-6)


def test_there_are_no_bits_per_byte_where_not_every_byte_is_predicted(program):
    sums = scores.total_sums(program, program.init(), HeldOut(), 7)
    assert "bits_per_byte" in scores.mean_scores((sums, 500), (sums, 500))
    assert "bits_per_byte" not in scores.mean_scores((sums, None))
    assert "bits_per_byte" not in scores.mean_scores((sums, 500), (sums, None))
