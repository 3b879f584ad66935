import functools

import jax
import jax.numpy as jnp
import numpy as np
from filled import filled, parameters, quick
from flax import nnx

from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.encoder import NUM_BIAS_COLUMNS, PositionEmbedding
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.types import Batch

BERT = ModelConfig(
    vocab_size=20, num_layers=1, d_model=16, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=24,
    activation="gelu", norm="layer", norm_placement="residual", attention_bias="all", ffn_bias=True,
    bidirectional=True, num_positions=8, num_token_types=2, masked_lm_head=True, tied_head=True,
    vocab_multiple=8,
)  # fmt: skip
IDS = jnp.asarray(np.random.default_rng(0).integers(0, 20, (2, 6)), jnp.int32)
POSITIONS = jnp.tile(jnp.arange(6, dtype=jnp.int32)[None], (2, 1))


@functools.cache
def run():
    """Hidden states, head, logits and the gradient of the loss of a model with a bias, compiled."""
    recipe = get_recipe("float32")
    made = filled(lambda: Decoder(BERT, rngs=nnx.Rngs(0), recipe=recipe))
    graph, params = nnx.split(made)
    batch = Batch(IDS, IDS, jnp.ones((2, 6)).at[:, 3:].set(0), POSITIONS, jnp.ones_like(IDS))
    loss = cross_entropy(XentConfig())

    @quick
    def all_of_it(params):
        model = nnx.merge(graph, params)
        hidden = model.hidden(IDS, POSITIONS, batch.segment_ids)
        grads = jax.grad(lambda p: loss(nnx.merge(graph, p), {}, batch, None).loss_sum)(params)
        return hidden, model.head_DV(), model.logits(hidden), grads["masked_lm"]["b_V"][...]

    return made, all_of_it(params)


def test_bias_of_the_logits_is_a_row_of_the_head():
    made, (hidden, head, logits, _) = run()
    assert hidden.shape[-1] == head.shape[0] == 16 + NUM_BIAS_COLUMNS
    plain = np.asarray(hidden[..., :16]) @ np.asarray(made.embedding_VD[...]).T
    np.testing.assert_allclose(
        logits, (plain + np.asarray(made.masked_lm.b_V[...]))[..., :20], atol=1e-5
    )


def test_the_loss_has_a_gradient_for_it():
    _, (_, _, logits, found) = run()
    exp = np.exp(logits[:, :3])
    expected = exp / exp.sum(-1, keepdims=True) - np.eye(20)[np.asarray(IDS[:, :3])]
    np.testing.assert_allclose(found[:20], expected.sum((0, 1)), atol=1e-5)
    np.testing.assert_array_equal(found[20:], 0)


def test_embeddings_add_up_and_are_normed():
    made = filled(lambda: PositionEmbedding(BERT, rngs=nnx.Rngs(0), fan_in=16))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((1, 3, 16)), jnp.float32)
    out = quick(made)(x, np.array([[5, 0, 1]], np.int32))
    p = parameters(made)
    total = np.asarray(x[0]) + p["position_TD"][[5, 0, 1]] + p["type_AD"][0]
    centred = total - total.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + BERT.norm_eps)
    expected = expected * p["norm.scale"] + p["norm.bias"]
    np.testing.assert_allclose(out[0], expected, atol=1e-5)


def test_a_position_beyond_the_table_is_no_other_position():
    made = filled(lambda: PositionEmbedding(BERT, rngs=nnx.Rngs(0), fan_in=16))
    out = np.asarray(quick(made)(np.zeros((1, 2, 16), np.float32), np.array([[7, 8]], np.int32)))
    assert not np.isnan(out[0, 0]).any()
    assert np.isnan(out[0, 1]).all()


def test_there_is_no_rope_beside_the_table():
    """Equal rows make positions alike."""
    made = nnx.clone(run()[0])
    made.positions.position_TD[...] = jnp.asarray(np.zeros((8, 16), np.float32))
    logits = quick(made)
    np.testing.assert_allclose(logits(IDS, POSITIONS), logits(IDS, POSITIONS[:, ::-1]), atol=1e-5)
