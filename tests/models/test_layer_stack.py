import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.models import layer_stack
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.layers import weight
from jaxtrain.precision.recipe import get_recipe

CONFIG = ModelConfig(
    vocab_size=8, num_layers=6, d_model=4, num_heads=1, num_kv_heads=1, head_dim=4, d_ff=4,
    scan_unroll=1,
)  # fmt: skip
# A window in two of three layers: one turn of the loop holds three.
WINDOWS = dataclasses.replace(CONFIG, window=2, global_every=3)
X = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)), jnp.float32)


class Square(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.w_DF = weight(rngs, (4, 4), "DF", fan_in=4)


@pytest.fixture(scope="module")
def stacked():
    return nnx.split(layer_stack.stack(Square, jax.random.key(0), 6))[1]


def layer(window, x, state, index):
    """Another function for each window and number, so that none can be taken for another."""
    factor, number = 1.0 if window is None else 0.5, jnp.asarray(index).astype(jnp.float32)
    y = jnp.tanh(x @ state["w_DF"].get_value()) * factor + jnp.float32(0.1) * number
    return y, {"sum": jnp.sum(x)}


def one_by_one(config, stacked, x):
    given = []
    for index in range(6):
        state = jax.tree.map(lambda w, index=index: w[index], stacked)
        x, of_layer = layer(config.layer_window(index), x, state, index)
        given.append(of_layer["sum"])
    return x, jnp.stack(given)


def in_parts(config, stacked, x, parts, platform):
    given = []
    weights = layer_stack.weights_of(config, stacked, parts, platform)
    for layers, of_part in zip(parts, weights, strict=True):
        x, of_layers = layer_stack.apply(layer, of_part, x, config, layers, platform)
        given.append(of_layers["sum"])
    return x, jnp.concatenate(given)


@pytest.mark.parametrize("config", [CONFIG, WINDOWS], ids=["alike", "windows"])
@pytest.mark.parametrize(
    "parts", [[range(6)], [range(1), range(1, 5), range(5, 6)], [range(2), range(2, 6)]], ids=str
)
@pytest.mark.parametrize("unroll", [1, None], ids=["looped", "unrolled"])
def test_layers_give_and_learn_what_they_do_one_by_one(stacked, config, parts, unroll):
    config = dataclasses.replace(config, scan_unroll=unroll)

    def loss(run, stacked):
        x, given = run(stacked)
        return jnp.sum(x**2) + jnp.sum(given**2), (x, given)

    grad = jax.grad(loss, argnums=1, has_aux=True)
    found = grad(lambda s: in_parts(config, s, X, parts, "cpu"), stacked)
    wanted = grad(lambda s: one_by_one(config, s, X), stacked)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # float32, sums in another order


def test_stacked_layers_have_weights_of_their_own_and_say_so(stacked):
    w_LDF = stacked["w_DF"]
    assert w_LDF.get_value().shape == (6, 4, 4)
    assert w_LDF.get_metadata("axes") == "LDF"
    assert len({row.tobytes() for row in np.asarray(w_LDF.get_value())}) == 6


def num_products(jaxpr) -> int:
    """Matmuls that are traced, those of inner programs included."""
    inner = (
        each.jaxpr if hasattr(each, "jaxpr") else each
        for equation in jaxpr.eqns
        for value in equation.params.values()
        for each in (value if isinstance(value, (tuple, list)) else [value])
    )
    own = sum(equation.primitive.name == "dot_general" for equation in jaxpr.eqns)
    return own + sum(num_products(each) for each in inner if hasattr(each, "eqns"))


@pytest.mark.parametrize(("remat", "products"), [("none", 3), ("dots", 3), ("full", 4)])
def test_remat_makes_again_what_its_name_says(stacked, remat, products):
    config, recipe = dataclasses.replace(CONFIG, remat=remat), get_recipe("bfloat16")
    dimensions = (((1,), (0,)), ((), ()))

    def project(window, x, state, index):
        w = state["w_DF"].get_value()
        return jnp.tanh(recipe.dot_general(x, w, dimension_numbers=dimensions)), {}

    def loss(stacked, x):
        weights = layer_stack.Weights(stacked, range(6))
        return jnp.sum(layer_stack.apply(project, weights, x, config, range(6), "gpu")[0])

    traced = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(stacked, X.astype(jnp.bfloat16))
    assert num_products(traced.jaxpr) == products
