"""Measures in a module alone; through stacked layers in models/test_decoder.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain import measured
from jaxtrain.measured import Largest, LargestOfGradient, Measured, Measuring, Slot, Total
from jaxtrain.models.parameters import read_measured, split


@jax.custom_vjp
def watched(x, largest_gradient):
    """`x`; its cotangent's largest entry comes back as that of the second operand."""
    return x


watched.defvjp(
    lambda x, largest: (x, None), lambda _, gradient: (gradient, jnp.max(jnp.abs(gradient)))
)


class Watching(Measuring):
    """A weight whose inputs and gradients are measured."""

    def __init__(self):
        self.w_D = nnx.Param(jnp.arange(1.0, 4.0), axes="D")
        self.sum_D = Total(None, extent=(3,))
        self.largest = Largest(None, extent=())
        self.largest_gradient = LargestOfGradient(None, extent=())
        self.steps = nnx.BatchStat(jnp.zeros(()))

    def __call__(self, x_BD):
        self.sum_D.note(jnp.sum(x_BD, axis=0))
        self.largest.note(jnp.max(jnp.abs(x_BD)))
        y_BD = x_BD * self.w_D[...][None]
        asked = self.largest_gradient.get_value()
        return y_BD if asked is None else watched(y_BD, asked)

    def settle(self):
        self.steps[...] = self.steps[...] + 1


X = np.array([[1.0, -5, 2], [0, 1, 1]], np.float32)


@pytest.fixture(scope="module")
def parts():
    return split(nnx.eval_shape(Watching))


def test_slots_say_kind_and_shape(parts):
    assert parts.measured == {
        "sum_D": Slot(Total, (3,)),
        "largest": Slot(Largest, ()),
        "largest_gradient": Slot(LargestOfGradient, ()),
    }


def test_a_model_that_is_not_asked_measures_nothing(parts):
    model = parts.bind({"w_D": jnp.ones(3)}, {"steps": jnp.zeros(())})
    model(X)
    assert read_measured(model) == {}


def test_a_model_made_outside_of_a_trace_runs_inside_of_one():
    model = Watching()
    np.testing.assert_array_equal(jax.jit(lambda x: model(x))(X), X * [1, 2, 3])


def test_two_passes_add_up_sums_and_keep_the_larger_maximum(parts):
    params = {"w_D": jnp.ones(3)}
    model = parts.bind(params, {"steps": jnp.zeros(())}, measured.zeros(parts.measured))
    model(X)
    model(2 * X[1:])
    found = read_measured(model)
    np.testing.assert_array_equal(found["sum_D"], [1, -2, 5])
    np.testing.assert_array_equal(found["largest"], 5)


def test_gradients_flow_through_sums(parts):
    def of_sum(x):
        model = parts.bind({"w_D": jnp.ones(3)}, {"steps": jnp.zeros(())}, zeros)
        model(x)
        return jnp.sum(jnp.square(read_measured(model)["sum_D"]))

    zeros = measured.zeros(parts.measured)
    np.testing.assert_array_equal(jax.grad(of_sum)(X), np.tile(2 * X.sum(0), (2, 1)))


def test_a_maximum_of_the_backward_pass_is_the_gradient_of_its_zero(parts):
    def loss(start):
        model = parts.bind({"w_D": jnp.ones(3)}, {"steps": jnp.zeros(())}, start)
        return jnp.sum(model(X) * jnp.asarray([[1.0, 7, -9]])), read_measured(model)

    start = measured.zeros(parts.measured)
    of_zeros, forward = jax.grad(loss, has_aux=True)(start)
    found = measured.of_both_passes(parts.measured, forward, of_zeros)
    assert {name: np.max(value) for name, value in found.items()} == {
        "sum_D": 3,
        "largest": 5,
        "largest_gradient": 9,
    }


def test_combine_goes_by_kind(parts):
    a = {"sum_D": jnp.ones(3), "largest": jnp.float32(2), "largest_gradient": jnp.float32(5)}
    b = {"sum_D": jnp.ones(3), "largest": jnp.float32(3), "largest_gradient": jnp.float32(4)}
    both = measured.combine(parts.measured, a, b)
    np.testing.assert_array_equal(both["sum_D"], [2, 2, 2])
    assert (both["largest"], both["largest_gradient"]) == (3, 5)


def test_settle_reaches_every_measuring_module():
    outer = nnx.List([Watching(), Watching()])
    measured.settle(outer)
    assert [float(each.steps[...]) for each in outer] == [1, 1]


def test_schedules_are_those_of_every_module_at_a_point_of_the_run():
    class Following(measured.Measuring):
        def __init__(self, name):
            self.name = name

        def schedules(self, num_updates):
            return {self.name: 2 * num_updates}

    found = measured.schedules(nnx.List([Following("a"), Watching(), Following("b")]), jnp.int32(3))
    assert found == {"a": 6, "b": 6}


def test_modules_without_a_say_add_nothing_to_what_is_minimised():
    model = Watching()
    assert not measured.has_auxiliary(model)
    assert measured.auxiliary(model, model, jnp.int32(0)) == 0
    assert measured.metrics(model) == measured.schedules(model, jnp.int32(0)) == {}
    with pytest.raises(NotImplementedError):
        Measured.combine(jnp.zeros(()), jnp.zeros(()))
