import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.models import rope
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.gqa import GroupedQueryAttention
from jaxtrain.precision.recipe import get_recipe

CONFIG = ModelConfig(
    vocab_size=64, num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=12,
    attention_bias="all", qk_norm="head", attention_sinks=True, attention_softcap=4.0,
)  # fmt: skip
X_BTD = jax.random.normal(jax.random.key(0), (2, 6, 16))


def cached_output(layer, x_BTD, rotation):
    """What decoding computes for the last token of each row, its entries cached as they came."""
    q_BTNH, entries = layer.heads(x_BTD, rotation)
    cached = [entry.swapaxes(1, 2) for entry in entries]
    assert [(entry.shape[1], entry.shape[3]) for entry in cached] == list(layer.entry_shapes)
    visible_BS = jnp.ones(x_BTD.shape[:2], bool)
    out_BNH = layer.attend_cached(q_BTNH[:, -1], cached, visible_BS)
    return layer.output(out_BNH[:, None])[:, 0]


def test_attending_to_a_cache_is_attending_in_the_row():
    recipe = get_recipe("float32")
    layer = GroupedQueryAttention(CONFIG, rngs=nnx.Rngs(1), recipe=recipe, constrain=lambda x, _: x)
    layer.sink_N[...] = jnp.array([-1.0, 0.0, 1.0, 2.0])
    by = rope.rotation(CONFIG, jnp.tile(jnp.arange(6, dtype=jnp.int32)[None], (2, 1)))
    row = layer(X_BTD, by, None, window=None, implementation="chunked")
    np.testing.assert_allclose(cached_output(layer, X_BTD, by), row[:, -1], atol=1e-5)


@pytest.mark.parametrize("has_sinks", [False, True])
def test_sinks_are_there_where_the_config_says_so(has_sinks):
    config = ModelConfig(
        vocab_size=64, num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=12,
        attention_sinks=has_sinks,
    )  # fmt: skip
    layer = GroupedQueryAttention(
        config, rngs=nnx.Rngs(1), recipe=get_recipe("float32"), constrain=lambda x, _: x
    )
    assert (layer.sinks_N is not None) == has_sinks
