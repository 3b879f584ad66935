import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.models.config import ModelConfig
from jaxtrain.train.frozen import FrozenModel
from tests.train.stand_in import Bigram, batch

SHAPE = ModelConfig(
    vocab_size=8, num_layers=1, d_model=4, num_heads=1, num_kv_heads=1, head_dim=4, d_ff=4
)  # of no use to a stand-in


@pytest.fixture
def frozen():
    return FrozenModel("teacher", SHAPE, lambda rng: Bigram(nnx.Rngs(rng)), jnp.bfloat16)


def test_the_model_is_described_without_an_allocation(frozen):
    assert {type(leaf) for leaf in jax.tree.leaves(frozen.model.params)} == {jax.ShapeDtypeStruct}
    assert frozen.model.axes["up"] == "DF"


def test_matrices_are_held_as_they_are_computed_with_and_the_rest_as_it_is(frozen):
    held = frozen.init(jax.random.key(0))
    assert {name: leaf.dtype for name, leaf in held.items()} == {
        "embedding": jnp.bfloat16, "up": jnp.bfloat16, "down": jnp.bfloat16, "scale": jnp.float32,
    }  # fmt: skip
    made = Bigram(nnx.Rngs(jax.random.key(0)))
    np.testing.assert_array_equal(held["up"], made.up[...].astype(jnp.bfloat16))


def test_no_gradient_flows_through_a_bound_model():
    frozen = FrozenModel("teacher", SHAPE, lambda rng: Bigram(nnx.Rngs(rng)), jnp.float32)
    params = frozen.init(jax.random.key(3))
    inputs = batch().inputs

    def total(params, x):
        return jnp.sum(frozen.bind(params)(inputs) * x)

    value, (of_params, of_x) = jax.value_and_grad(total, (0, 1))(params, jnp.float32(2.0))
    expected = jnp.sum(Bigram(nnx.Rngs(jax.random.key(3)))(inputs))
    assert float(of_x) == pytest.approx(float(expected), rel=1e-5)
    assert float(value) == pytest.approx(2 * float(expected), rel=1e-5)
    assert not any(jnp.any(leaf) for leaf in jax.tree.leaves(of_params))
