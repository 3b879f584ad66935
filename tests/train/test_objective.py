"""Auxiliary terms with their own denominators, added up over microbatches."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxtrain.measured import Total
from jaxtrain.optim.build import Optimizer
from jaxtrain.precision.recipe import PrecisionConfig, training_recipe
from jaxtrain.train.objective import accumulate
from tests.train import stand_in

NUM_CLUSTERS = 4


class Clustered(stand_in.Bigram):
    """Has terms like a router's: one of rows alone, one of shares of the whole batch."""

    def __init__(self, rngs, *, weight_of_size=0.0, weight_of_balance=0.0):
        super().__init__(rngs)
        self.weights = weight_of_size, weight_of_balance
        self.w_DE = nnx.Param(jax.random.normal(rngs.params(), (stand_in.D, NUM_CLUSTERS)),
                              axes="DE")  # fmt: skip
        self.size, self.num_tokens = Total(None, extent=()), Total(None, extent=())
        self.chosen_E = Total(None, extent=(NUM_CLUSTERS,))
        self.probability_E = Total(None, extent=(NUM_CLUSTERS,))

    def look(self, batch):
        size, num, chosen_E, probability_E = sums_of_terms(
            self.embedding[...], self.w_DE[...], batch
        )
        self.size.note(size)
        self.num_tokens.note(num)
        self.chosen_E.note(chosen_E)
        self.probability_E.note(probability_E)

    has_auxiliary = property(lambda self: any(self.weights))

    def auxiliary(self, whole):
        num = whole.num_tokens[...]
        size = self.weights[0] * self.size[...] / num
        if not self.weights[1]:
            return size
        balance = jnp.sum(whole.chosen_E[...] / num * self.probability_E[...] / num)
        return size + self.weights[1] * balance

    def metrics(self):
        return {"num_seen": self.num_tokens[...]}


def sums_of_terms(embedding, w_DE, batch):
    """(Σ lse², tokens, tokens by cluster, Σ probability by cluster): rows of odd ids count."""
    x_BTD = embedding[batch.inputs]
    logits_BTE = jnp.einsum("btd,de->bte", x_BTD, w_DE, precision="highest")
    counted_BT = (batch.inputs % 2).astype(jnp.float32)
    lse_BT = jax.nn.logsumexp(logits_BTE, axis=-1)
    chosen_BTE = jax.nn.one_hot(jnp.argmax(logits_BTE, axis=-1), NUM_CLUSTERS)
    return (
        jnp.sum(jnp.square(lse_BT) * counted_BT),
        jnp.sum(counted_BT),
        jnp.sum(chosen_BTE * counted_BT[..., None], axis=(0, 1)),
        jnp.sum(jax.nn.softmax(logits_BTE) * counted_BT[..., None], axis=(0, 1)),
    )


def loss(model, frozen, batch, rng):
    model.look(batch)
    return stand_in.loss(model, frozen, batch, rng)


def sgd(axes):
    """The update is the gradient."""
    del axes
    return Optimizer(optax.sgd(1.0), lambda count: jnp.float32(1.0), "sgd")


def program(num_microbatches, **weights):
    return stand_in.program(
        make_model=lambda rng: Clustered(nnx.Rngs(rng), **weights),
        loss=loss,
        make_optimizer=sgd,
        num_microbatches=num_microbatches,
    )


def whole_batch(params, batch, weight_of_size, weight_of_balance):
    """(main, auxiliary) as one formula over the whole batch."""
    model = Clustered(nnx.Rngs(0))
    for name in ("embedding", "up", "down", "scale"):
        getattr(model, name).set_value(params[name])
    sums = stand_in.loss(model, {}, batch, None)
    size, num, chosen_E, probability_E = sums_of_terms(params["embedding"], params["w_DE"], batch)
    shares = jax.lax.stop_gradient(chosen_E / num)
    balance = weight_of_balance * jnp.sum(shares * probability_E / num)
    return sums.loss_sum / sums.weight_sum, weight_of_size * size / num + balance


@functools.cache
def reference(*weights):
    params = jax.device_get(program(1).init().params)

    def total(params):
        main, auxiliary = whole_batch(params, stand_in.batch(), *weights)
        return main + auxiliary, (main, auxiliary)

    return params, *jax.device_get(jax.jit(jax.value_and_grad(total, has_aux=True))(params))


@pytest.mark.parametrize("num_microbatches", [1, 4])
@pytest.mark.parametrize("weights", [(0.1, 0.0), (0.0, 5.0), (0.1, 5.0)])
def test_main_and_auxiliary_losses_are_those_of_the_whole_batch(weights, num_microbatches):
    """PRE-04; rows differ in what counts for the main loss and for the terms."""
    params, (total, (main, auxiliary)), grads = reference(*weights)
    names = {"weight_of_size": weights[0], "weight_of_balance": weights[1]}
    state, (metrics,) = stand_in.run(program(num_microbatches, **names), [stand_in.batch()])
    assert metrics["loss"] == pytest.approx(main, rel=1e-5)
    assert metrics["auxiliary_loss"] == pytest.approx(auxiliary, rel=1e-5)
    assert metrics["total_loss"] == pytest.approx(total, rel=1e-5)
    assert metrics["num_seen"] == np.sum(stand_in.batch().inputs % 2)
    for name, grad in grads.items():
        applied = params[name].astype(np.float64) - jax.device_get(state.params[name])
        np.testing.assert_allclose(applied, grad, rtol=1e-5, atol=5e-7, err_msg=name)


def test_a_model_without_terms_logs_none_and_trains_as_one_that_has_none():
    _, (metrics,) = stand_in.run(program(4), [stand_in.batch()])
    assert "auxiliary_loss" not in metrics
    assert metrics["num_seen"] > 0


def num_products(num_microbatches, **weights):
    """Matrix products in the compiled step."""
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), stand_in.batch())
    text = program(num_microbatches, **weights).lower(batch).compile().as_text()
    return len(re.findall(r"= \S+ dot\(", text))


def test_denominators_of_the_batch_alone_cost_no_forward_pass():
    for_rows, for_shares = {"weight_of_size": 1.0}, {"weight_of_balance": 1.0}
    assert num_products(4, **for_rows) == num_products(1, **for_rows)
    # Shares of the whole batch are known ahead only from a pass of the clusters.
    assert num_products(4, **for_shares) == num_products(1, **for_shares) + 1


def test_a_forward_pass_that_changes_lasting_state_is_refused():
    def changing(model, frozen, batch, rng):
        model.calls[...] = model.calls[...] + 1
        return stand_in.loss(model, frozen, batch, rng)

    with pytest.raises(AssertionError, match=r"not by settle\(\): calls"):
        stand_in.run(stand_in.program(loss=changing), [stand_in.batch()])


def test_a_measure_that_is_not_finite_skips_the_update():
    def overflowing(model, frozen, batch, rng):
        model.new_calls.note(jnp.float32(np.inf))
        return stand_in.loss(model, frozen, batch, rng)

    program = stand_in.program(loss=overflowing)
    before = jax.device_get(program.init())
    state, (metrics,) = stand_in.run(program, [stand_in.batch()])
    assert (metrics["skipped"], int(state.nontrained["calls"])) == (1, 0)
    jax.tree.map(np.testing.assert_array_equal, before.params, jax.device_get(state.params))


@pytest.mark.parametrize("reduce_dtype", ["float32", "bfloat16"])
def test_gradients_of_microbatches_are_added_up_in_float32(reduce_dtype):
    """1/2 is nothing beside 256 in bfloat16, 64 of them are as much as 32."""
    config = PrecisionConfig(recipe="bfloat16", grad_reduce_dtype=reduce_dtype)
    dot = training_recipe(config).dot_general
    x = jnp.asarray([256.0] + [0.5] * 64, jnp.bfloat16)[:, None, None]

    def gradient(x, rng):
        del rng
        matmul = (((1,), (0,)), ((), ()))
        return jax.grad(lambda w: jnp.sum(dot(x, w, dimension_numbers=matmul)))(jnp.ones((1, 1)))

    assert accumulate(gradient, jnp.add, x, jax.random.key(0)) == 256 + 32


def test_accumulate_gives_every_microbatch_a_key_of_its_own():
    def run(x, rng):
        return x, jax.random.uniform(rng)

    def add(a, b):
        return jax.tree.map(jnp.add, a, b)

    rng = jax.random.key(0)
    total, drawn = accumulate(run, add, jnp.arange(3.0), rng)
    keys = [jax.random.fold_in(rng, index) for index in range(3)]
    assert total == 3
    assert drawn == pytest.approx(float(sum(jax.random.uniform(key) for key in keys)), rel=1e-6)
    _, alone = accumulate(run, add, jnp.arange(1.0), rng)
    assert alone == jax.random.uniform(rng)
