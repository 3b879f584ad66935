import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled, quick
from flax import nnx

from jaxtrain.losses.neftune import embedding_noise, segment_lengths
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.types import Batch

D = 64
SEGMENTS = np.array([[1] * 5 + [2] * 40 + [3] * 15 + [0] * 4, [1] * 64], np.int32)


@pytest.mark.parametrize(
    ("segment_ids", "expected"),
    [
        ([1, 1, 2, 3, 3, 0, 0], [2, 2, 1, 2, 2, 0, 0]),
        ([1, 1, 1], [3, 3, 3]),
        ([0, 0], [0, 0]),
        ([4], [1]),
    ],
)
def test_lengths_are_those_of_the_segments(segment_ids, expected):
    lengths = segment_lengths(jnp.asarray([segment_ids, segment_ids]))
    np.testing.assert_array_equal(lengths, [expected, expected])


def noise(alpha, dtype=jnp.float32, value=0.0):
    rng = jax.random.key(0)
    x = jnp.full((*SEGMENTS.shape, D), value, dtype)
    return np.asarray(embedding_noise(alpha, SEGMENTS, rng)(x))


def test_noise_is_uniform_up_to_alpha_over_the_root_of_length_times_width():
    x = noise(alpha=5.0)
    for row, segment_id in ((0, 1), (0, 2), (0, 3), (1, 1)):
        own = x[row][SEGMENTS[row] == segment_id]
        bound = 5.0 / np.sqrt(len(own) * D)
        assert 0.95 * bound < np.abs(own).max() <= bound
        assert abs(own.mean()) < 5 * bound / np.sqrt(3 * own.size)  # 5 standard errors
        # A uniform variable's square has mean b²/3 and standard deviation b² · √(4/45).
        assert own.var() == pytest.approx(
            bound**2 / 3, abs=5 * bound**2 * np.sqrt(4 / 45 / own.size)
        )
    assert not x[SEGMENTS == 0].any()


def test_noise_keeps_the_dtype_and_is_added_to_what_is_there():
    low = noise(alpha=5.0, dtype=jnp.bfloat16, value=1.0)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(np.float32), 1 + noise(alpha=5.0), atol=2**-7)


@pytest.fixture(scope="module")
def decoder():
    config = ModelConfig(
        vocab_size=32, d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=32
    )
    recipe = get_recipe("float32")
    return filled(lambda: Decoder(config, rngs=nnx.Rngs(0), recipe=recipe))


def loss_sum(config, decoder, rng):
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 32, SEGMENTS.shape), jnp.int32)
    segment_ids = jnp.asarray(SEGMENTS)
    weights = (segment_ids > 0).astype(jnp.float32)
    batch = Batch(ids, ids, weights, jnp.cumsum(jnp.ones_like(ids), axis=1) - 1, segment_ids)
    structure, state = nnx.split(decoder)
    loss = cross_entropy(config)

    @quick
    def compiled(state, batch, rng):
        return loss(nnx.merge(structure, state), {}, batch, rng).loss_sum

    return compiled(state, batch, rng)


def test_training_sees_noise_of_its_own_key_and_evaluation_none(decoder):
    plain, noisy = XentConfig(), XentConfig(neftune_alpha=5.0)
    keys = [jax.random.key(i) for i in range(2)]
    without = loss_sum(plain, decoder, None)
    assert loss_sum(plain, decoder, keys[0]) == without  # no dropout in this model
    assert loss_sum(noisy, decoder, None) == without
    first, second = (loss_sum(noisy, decoder, key) for key in keys)
    assert len({float(without), float(first), float(second)}) == 3
    assert loss_sum(noisy, decoder, keys[0]) == first


def test_noise_enters_the_decoder_at_its_embeddings(decoder):
    ids = jnp.asarray(SEGMENTS)
    seen = []

    def hidden(perturb):
        return decoder.hidden(ids, jnp.zeros_like(ids), ids, perturb=perturb)

    jax.eval_shape(lambda: hidden(lambda x_BTD: seen.append(x_BTD.shape) or x_BTD))
    assert seen == [(*ids.shape, 16)]
    unchanged, doubled = quick(lambda: (hidden(lambda x: x), hidden(lambda x: 2 * x)))()
    decoder.embedding_VD[...] = decoder.embedding_VD[...] * 2
    expected = quick(lambda: hidden(None))()
    decoder.embedding_VD[...] = decoder.embedding_VD[...] / 2
    np.testing.assert_allclose(doubled, expected, rtol=1e-5)
    assert np.abs(doubled - unchanged).max() > 1e-3


@pytest.mark.parametrize("alpha", [-1.0, float("nan")])
def test_config_refuses_noise_without_meaning(alpha):
    with pytest.raises(ValueError, match=rf"^neftune_alpha={alpha} must be >= 0 and finite\.$"):
        XentConfig(neftune_alpha=alpha)
