import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy_decoder
import pytest

from jaxtrain.models import rope
from jaxtrain.models.config import ModelConfig

CONFIG = ModelConfig(
    vocab_size=64, num_layers=1, d_model=32, num_heads=2, num_kv_heads=2, head_dim=128, d_ff=48
)
LLAMA3 = dataclasses.replace(
    CONFIG,
    rope_base=500_000.0,
    rope_scaling="llama3",
    rope_factor=8.0,
    rope_original_len=8192,
)


def test_cosines_are_right_far_out_in_a_bfloat16_model():
    positions_BT = jnp.full((1, 1), 4095, jnp.int32)
    exact = np.cos(4095 * 10_000.0 ** (-np.arange(64) / 64))
    cos = rope.rotation(CONFIG, positions_BT).cos
    assert cos.dtype == jnp.float32
    assert np.abs(np.asarray(cos)[0, 0, 0] - exact).max() < 3e-4
    # Rotating (1, 0) gives (cos, sin). A bfloat16 phase would be off by 1.7 here.
    unit = jnp.concatenate([jnp.ones((1, 1, 1, 64)), jnp.zeros((1, 1, 1, 64))], -1)
    turned = rope.rotate(unit.astype(jnp.bfloat16), rope.rotation(CONFIG, positions_BT))
    assert turned.dtype == jnp.bfloat16
    assert np.abs(np.asarray(turned, np.float64)[0, 0, 0, :64] - exact).max() <= 0.004


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_rotate_turns_pairs_of_first_and_second_half(factor):
    config = dataclasses.replace(CONFIG, rope_scaling="linear", rope_factor=factor)
    rng = np.random.default_rng(0)
    x_BTNH = rng.standard_normal((2, 5, 3, 128)).astype(np.float32)
    positions_BT = np.array([[0, 1, 2, 3, 4], [7, 0, 1, 300, 2]], np.int32)
    turned = rope.rotate(jnp.asarray(x_BTNH), rope.rotation(config, jnp.asarray(positions_BT)))
    for row in range(2):
        expected = numpy_decoder.rotated(x_BTNH[row].astype(np.float64), positions_BT[row], config)
        np.testing.assert_allclose(turned[row], expected, atol=1e-4)  # 300 · 2⁻²⁴ · |x|


def test_scores_depend_on_the_distance_only():
    rng = np.random.default_rng(1)
    q, k = (jnp.asarray(rng.standard_normal((1, 1, 1, 128)), jnp.float32) for _ in range(2))

    def score(at_q, at_k):
        turned = [
            rope.rotate(x, rope.rotation(CONFIG, jnp.full((1, 1), at, jnp.int32)))
            for x, at in ((q, at_q), (k, at_k))
        ]
        return float(jnp.sum(turned[0] * turned[1]))

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert abs(score(9, 4) - score(9, 5)) > 1e-2


def test_llama3_scaling_keeps_short_and_stretches_long_wavelengths():
    plain = rope.frequencies(dataclasses.replace(LLAMA3, rope_scaling="none", rope_factor=1.0))
    ratio = plain / rope.frequencies(LLAMA3)
    wavelength = 2 * np.pi / plain
    np.testing.assert_array_equal(ratio[wavelength < 8192 / 4], 1)
    np.testing.assert_allclose(ratio[wavelength > 8192], 8, rtol=1e-12)
    between = ratio[(wavelength > 8192 / 4) & (wavelength < 8192)]
    assert len(between) > 2
    assert np.all(np.diff(between) > 0)
    assert 1 < between[0] < between[-1] < 8


@pytest.mark.reference
@pytest.mark.parametrize("scaling", ["linear", "llama3"])
def test_frequencies_are_those_of_transformers(scaling):
    pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    config = dataclasses.replace(LLAMA3, rope_scaling=scaling)
    theirs = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        head_dim=128,
        max_position_embeddings=65_536,
        rope_parameters={
            "rope_type": scaling,
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    inverse, factor = utils.ROPE_INIT_FUNCTIONS[scaling](theirs, device="cpu")
    assert factor == 1
    np.testing.assert_allclose(rope.frequencies(config), inverse.numpy(), rtol=2e-6)


def test_gradient_of_a_rotation_is_the_rotation_back():
    positions_BT = jnp.full((1, 1), 3, jnp.int32)
    by = rope.rotation(CONFIG, positions_BT)
    x = jnp.asarray(np.random.default_rng(2).standard_normal((1, 1, 1, 128)), jnp.float32)
    _, pull = jax.vjp(lambda x: rope.rotate(x, by), x)
    np.testing.assert_allclose(pull(rope.rotate(x, by))[0], x, atol=1e-6)
