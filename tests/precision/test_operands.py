"""What test_fp8.py, which holds products against float64, does not see of operands."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.precision import operands
from jaxtrain.precision.operands import Measure
from jaxtrain.precision.quantize import E5M2


@dataclasses.dataclass(frozen=True)
class Matmul:
    """Rows times a matrix."""

    def output(self, x, w, where, dtype):
        return jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=dtype)

    def d_input(self, g, w, where, dtype):
        return jax.lax.dot_general(g, w, (((1,), (1,)), ((), ())), preferred_element_type=dtype)

    def d_weight(self, x, g, where, dtype):
        return jax.lax.dot_general(x, g, (((0,), (0,)), ((), ())), preferred_element_type=dtype)


def draw():
    rng = np.random.default_rng(0)
    x, w, g = (rng.normal(size=shape) * size for shape, size in
               (((24, 32), 3.0), ((32, 16), 0.1), ((24, 16), 1e-4)))  # fmt: skip
    return jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.float32), jnp.asarray(g, jnp.bfloat16)


def multiplied(x, w, history=None, move=lambda x: x):
    """Cast, moved, multiplied."""
    of = [Measure(None if history is None else history[i], None) for i in range(3)]
    cast_x = operands.in_e4m3(x, of[0]).moved(move)
    cast_w = operands.in_e4m3(w, of[1], (), jnp.bfloat16, jnp.float32)
    spec = operands.Spec(Matmul(), jnp.bfloat16, E5M2, "w")
    return operands.multiply(spec, cast_x, cast_w, of[2])


def test_rows_may_move_between_the_cast_and_the_product():
    """Turned around, with zeros behind; the gradient comes back to where rows were."""
    x, w, g = draw()

    def moved(x):
        return jnp.concatenate([x[::-1], jnp.zeros((2, 32), x.dtype)])

    y, pull = jax.vjp(lambda x: multiplied(x, w, None, moved), x)
    expected, expected_pull = jax.vjp(lambda x: multiplied(x, w), x)
    np.testing.assert_array_equal(y, jnp.pad(expected[::-1], ((0, 2), (0, 0))))
    np.testing.assert_array_equal(pull(jnp.pad(g, ((0, 2), (0, 0))))[0], expected_pull(g[::-1])[0])


@pytest.mark.parametrize("scaling", ["current", "delayed"])
def test_what_is_not_finite_makes_the_output_nan(scaling):
    x, w, _ = draw()
    history = jnp.full((3, 2), jnp.nan) if scaling == "delayed" else None
    x = x.at[0, 0].set(jnp.inf if scaling == "current" else 1)
    assert np.isnan(multiplied(x, w, history)).all()


def test_probe_of_several_devices_measures_the_largest():
    seen = jnp.asarray([[1.0, 5.0], [4.0, 2.0], [3.0, 3.0]])

    def total(probe):
        return jnp.sum(operands.for_each_device(probe, 3) * seen)

    np.testing.assert_array_equal(jax.grad(total)(jnp.zeros(2)), [4, 5])
