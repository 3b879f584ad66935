import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled, quick
from flax import nnx

from jaxtrain.models import rope
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.gqa import GroupedQueryAttention
from jaxtrain.precision.recipe import get_recipe

CONFIG = ModelConfig(
    vocab_size=64, num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=12,
    attention_bias="all", qk_norm="head", attention_sinks=True, attention_softcap=4.0,
)  # fmt: skip
X_BTD = np.random.default_rng(0).standard_normal((2, 6, 16)).astype(np.float32)


@functools.partial(quick, static_argnums=0)
def outputs(layer, x_BTD, rotation):
    """Of each row, and what decoding computes for its last token, entries cached as they came."""
    row_BTD = layer(x_BTD, rotation, None, window=None, implementation="chunked")
    q_BTNH, entries = layer.heads(x_BTD, rotation)
    cached = [entry.swapaxes(1, 2) for entry in entries]
    assert [(entry.shape[1], entry.shape[3]) for entry in cached] == list(layer.entry_shapes)
    visible_BS = jnp.ones(x_BTD.shape[:2], bool)
    out_BNH = layer.attend_cached(q_BTNH[:, -1], cached, visible_BS)
    return row_BTD, layer.output(out_BNH[:, None])[:, 0]


def rotation(config, positions_BT):
    """As constants."""
    return jax.tree.map(np.asarray, quick(rope.rotation, static_argnums=0)(config, positions_BT))


def test_attending_to_a_cache_is_attending_in_the_row():
    recipe = get_recipe("float32")

    def make():
        return GroupedQueryAttention(
            CONFIG, rngs=nnx.Rngs(1), recipe=recipe, constrain=lambda x, _: x
        )

    by = rotation(CONFIG, np.tile(np.arange(6, dtype=np.int32), (2, 1)))
    row_BTD, last_BD = outputs(filled(make), X_BTD, by)
    np.testing.assert_allclose(last_BD, row_BTD[:, -1], atol=1e-5)


@pytest.mark.parametrize("has_sinks", [False, True])
def test_sinks_are_there_where_the_config_says_so(has_sinks):
    config = ModelConfig(
        vocab_size=64, num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=12,
        attention_sinks=has_sinks,
    )  # fmt: skip
    recipe = get_recipe("float32")

    def make():
        return GroupedQueryAttention(
            config, rngs=nnx.Rngs(1), recipe=recipe, constrain=lambda x, _: x
        )

    assert (filled(make).sinks_N is not None) == has_sinks
