import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxtrain.models import rope
from jaxtrain.models.block import Block
from jaxtrain.models.config import ModelConfig
from jaxtrain.precision.recipe import get_recipe

FLOAT32, BFLOAT16 = get_recipe("float32"), get_recipe("bfloat16")
CONFIG = ModelConfig(
    vocab_size=64, num_layers=8, d_model=64, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=96
)


def unconstrained(x, letters):
    return x


def test_weights_that_write_to_the_residual_are_smaller_by_depth():
    block = Block(CONFIG, rngs=nnx.Rngs(0), recipe=FLOAT32, constrain=unconstrained)
    std = {
        path[-1]: float(jnp.std(param[...]))
        for path, param in nnx.to_flat_state(nnx.state(block))
        if path[-1].startswith("w_")
    }
    fan_in = {"w_q_DNH": 64, "w_k_DKH": 64, "w_v_DKH": 64, "w_gate_DF": 64, "w_up_DF": 64}
    expected = {name: fan**-0.5 for name, fan in fan_in.items()}
    expected |= {"w_o_NHD": (2 * 8 * 64) ** -0.5, "w_down_FD": (2 * 8 * 96) ** -0.5}
    assert std == {name: pytest.approx(value, rel=0.05) for name, value in expected.items()}


@pytest.mark.parametrize(
    ("changes", "num_matmuls"), [({}, 7), ({"activation": "relu2", "ffn_bias": True}, 6)]
)
def test_every_weight_matmul_goes_through_the_recipe(changes, num_matmuls):
    seen = []

    def dot_general(lhs, rhs, **rest):
        seen.append((lhs.dtype, rhs.dtype))
        return BFLOAT16.dot_general(lhs, rhs, **rest)

    recipe = dataclasses.replace(BFLOAT16, dot_general=dot_general)
    config = dataclasses.replace(CONFIG, **changes)
    block = Block(config, rngs=nnx.Rngs(0), recipe=recipe, constrain=unconstrained)
    by = rope.rotation(config, jnp.zeros((1, 4), jnp.int32))
    x_BTD = jnp.ones((1, 4, 64), jnp.bfloat16)

    def call(x):
        return block(x, by, None, None, window=None, implementation="chunked")

    assert jax.eval_shape(call, x_BTD).dtype == jnp.bfloat16
    # Master weights as they are: the recipe casts them, and gives gradients of its own choice.
    assert seen == [(jnp.bfloat16, jnp.float32)] * num_matmuls


def test_activations_are_pinned_by_their_letters():
    seen = []

    def constrain(x, letters):
        seen.append((letters, x.shape))
        return x

    block = Block(CONFIG, rngs=nnx.Rngs(0), recipe=FLOAT32, constrain=constrain)
    by = rope.rotation(CONFIG, jnp.zeros((1, 4), jnp.int32))

    def call(x):
        return block(x, by, None, None, window=None, implementation="chunked")

    jax.eval_shape(call, jnp.ones((1, 4, 64)))
    assert set(seen) == {
        ("BTD", (1, 4, 64)),
        ("BTNH", (1, 4, 4, 16)),
        ("BTKH", (1, 4, 2, 16)),
        ("BTF", (1, 4, 96)),
    }
    assert [letters for letters, _ in seen].count("BTD") == 2  # after each residual sum
