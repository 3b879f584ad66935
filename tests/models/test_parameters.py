import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.measured import Settled
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import flatten, nest, read_nontrained, split, whole
from jaxtrain.precision.recipe import get_recipe

CONFIG = ModelConfig(
    vocab_size=16,
    num_layers=2,
    d_model=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    d_ff=12,
    qk_norm="head",
    attention_bias="all",
    ffn_bias=True,
)


def make():
    return Decoder(CONFIG, rngs=nnx.Rngs(0), recipe=get_recipe("float32"))


@functools.cache
def concrete_params():
    return jax.jit(lambda: split(make()).params)()


class Counting(nnx.Module):
    """A weight, and a count that a step changes by other means than gradients."""

    def __init__(self):
        self.w_D = nnx.Param(jnp.ones(3), axes="D")
        self.inner = nnx.Dict(calls=nnx.BatchStat(jnp.zeros(())))

    def __call__(self, x):
        self.inner["calls"][...] += 1
        return x * self.w_D[...]


def test_bind_undoes_split():
    parts = split(split(nnx.eval_shape(make)).bind(concrete_params(), {}))
    again = split(parts.bind(parts.params, parts.nontrained))
    jax.tree.map(np.testing.assert_array_equal, parts.params, concrete_params())
    jax.tree.map(np.testing.assert_array_equal, again.params, concrete_params())
    assert again.axes == parts.axes
    assert parts.nontrained == {}


def test_axes_name_every_dimension_of_every_leaf():
    parts = split(nnx.eval_shape(make))
    sizes = {"V": 16, "L": 2, "D": 8, "N": 2, "K": 1, "H": 4, "F": 12}
    shapes = jax.tree.map(lambda letters: tuple(sizes[a] for a in letters), parts.axes)
    assert shapes == jax.tree.map(lambda leaf: leaf.shape, parts.params)
    assert parts.axes["blocks"]["attention"]["w_o_NHD"] == "LNHD"
    assert parts.axes["blocks"]["attention"]["q_norm"]["scale"] == "LH"
    assert parts.axes["w_head_DV"] == "DV"


def test_bind_of_an_abstract_model_takes_concrete_parameters():
    abstract = split(nnx.eval_shape(make))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(abstract.params))
    bound = split(abstract.bind(concrete_params(), {}))
    jax.tree.map(np.testing.assert_array_equal, bound.params, concrete_params())
    assert bound.axes == abstract.axes


def test_gradients_flow_through_bind():
    parts = split(Counting())

    def loss(params):
        return jnp.sum(parts.bind(params, parts.nontrained)(jnp.arange(3.0)))

    grads = jax.jit(jax.grad(loss))(parts.params)
    np.testing.assert_array_equal(grads["w_D"], [0, 1, 2])


def test_nontrained_state_is_apart_and_read_back():
    parts = split(Counting())
    assert parts.params.keys() == {"w_D"}
    assert parts.nontrained == {"inner": {"calls": 0}}

    @jax.jit
    def step(nontrained):
        model = parts.bind(parts.params, nontrained)
        model(jnp.ones(3))
        return read_nontrained(model, nontrained)

    assert step(step(parts.nontrained)) == {"inner": {"calls": 2}}
    assert parts.nontrained == {"inner": {"calls": 0}}


@pytest.mark.parametrize("change", ["missing", "extra"])
def test_bind_refuses_another_tree_and_names_the_path(change):
    parts = split(nnx.eval_shape(make))
    params = jax.tree.map(lambda leaf: leaf, parts.params)
    if change == "missing":
        del params["blocks"]["ffn"]["w_up_DF"]
    else:
        params["blocks"]["ffn"]["w_up_DF2"] = jnp.zeros(())
    with pytest.raises(ValueError, match="do not fit the model: blocks/ffn/w_up_DF"):
        parts.bind(params, {})


def test_nest_undoes_flatten():
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert flatten(tree) == {"a.b": 1, "a.c.d": 2, "e": 3}
    assert nest(flatten(tree)) == tree


class Moved(nnx.Module):
    """A weight that is trained and one that is not."""

    def __init__(self):
        self.w_D = nnx.Param(jnp.ones(3), axes="D")
        self.router = nnx.Dict(bias_E=Settled(jnp.zeros(2), axes="E"))


def test_a_weight_that_no_gradient_trains_is_a_weight_and_part_of_the_lasting_state():
    parts = split(Moved())
    assert set(flatten(parts.params)) == set(flatten(parts.axes)) == {"w_D", "router.bias_E"}
    assert parts.settled == {"router.bias_E"}
    all_of_it = whole(parts)
    assert all_of_it.axes == {"w_D": "D"}
    assert set(all_of_it.init(parts.params, jax.random.key(0))) == {"w_D"}
    nontrained = all_of_it.nontrained(parts)
    assert set(flatten(nontrained)) == {"router.bias_E"}
    model = all_of_it.bind({"w_D": jnp.ones(3)}, {"router": {"bias_E": jnp.ones(2)}}, {})
    np.testing.assert_array_equal(read_nontrained(model, nontrained)["router"]["bias_E"], [1, 1])
