"""Against `fp8.product`, which test_fp8.py holds against float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.precision import fp8, operands
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


def in_one(x, w, history, probe):
    spec = fp8.Spec(1, E5M2, jnp.float32, "w")
    return fp8.product(spec, x, w, history, probe)


def in_two(x, w, history, probe, move=lambda x: x):
    """Cast, moved, multiplied."""
    of = [
        Measure(*(None if each is None else each[i] for each in (history, probe))) for i in range(3)
    ]
    cast_x = operands.in_e4m3(x, of[0]).moved(move)
    cast_w = operands.in_e4m3(w, of[1], (), jnp.bfloat16, jnp.float32)
    spec = operands.Spec(Matmul(), jnp.bfloat16, E5M2, "w")
    return operands.multiply(spec, cast_x, cast_w, of[2])


@pytest.mark.parametrize("scaling", ["current", "delayed"])
def test_cast_ahead_of_a_product_gives_the_same_output_gradients_and_measures(scaling):
    x, w, g = draw()
    history = jnp.asarray([[1.0, 9.0], [0.3, 0.1], [1e-3, 1e-4]])
    measures = (history, jnp.zeros(3)) if scaling == "delayed" else (None, None)

    def all_of(way):
        y, pull = jax.vjp(lambda x, w, probe: way(x, w, measures[0], probe), x, w, measures[1])
        return y, *pull(g)

    for got, want in zip(all_of(in_two), all_of(in_one), strict=True):
        if want is not None:
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


def test_rows_may_move_between_the_cast_and_the_product():
    """Turned around, with zeros behind; the gradient comes back to where rows were."""
    x, w, g = draw()

    def moved(x):
        return jnp.concatenate([x[::-1], jnp.zeros((2, 32), x.dtype)])

    y, pull = jax.vjp(lambda x: in_two(x, w, None, None, moved), x)
    expected, expected_pull = jax.vjp(lambda x: in_one(x, w, None, None), x)
    np.testing.assert_array_equal(y, jnp.pad(expected[::-1], ((0, 2), (0, 0))))
    np.testing.assert_array_equal(pull(jnp.pad(g, ((0, 2), (0, 0))))[0], expected_pull(g[::-1])[0])


@pytest.mark.parametrize("scaling", ["current", "delayed"])
def test_what_is_not_finite_makes_the_output_nan(scaling):
    x, w, _ = draw()
    history = jnp.full((3, 2), jnp.nan) if scaling == "delayed" else None
    x = x.at[0, 0].set(jnp.inf if scaling == "current" else 1)
    assert np.isnan(in_two(x, w, history, None)).all()


def test_probe_of_several_devices_measures_the_largest():
    seen = jnp.asarray([[1.0, 5.0], [4.0, 2.0], [3.0, 3.0]])

    def total(probe):
        return jnp.sum(operands.for_each_device(probe, 3) * seen)

    np.testing.assert_array_equal(jax.grad(total)(jnp.zeros(2)), [4, 5])
