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


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
YARNS = [
    {},
    {"beta_fast": 16, "beta_slow": 2, "attention_factor": 0.8},
    {"truncate": False, "mscale": 0.7, "mscale_all_dim": 1.3},
]


@pytest.mark.reference
@pytest.mark.parametrize("more", YARNS, ids=str)
@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_yarn_is_that_of_transformers(more, partial):
    pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    factor = more.get("attention_factor")
    if "mscale" in more:
        factor = (0.07 * np.log(8) + 1) / (0.13 * np.log(8) + 1)
    config = dataclasses.replace(
        CONFIG,
        rope_frac=partial,
        rope_scaling="yarn",
        rope_factor=8.0,
        rope_original_len=512,
        rope_beta_fast=float(more.get("beta_fast", 32)),
        rope_beta_slow=float(more.get("beta_slow", 1)),
        rope_truncate=more.get("truncate", True),
        rope_attention_factor=factor,
    )
    theirs = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        head_dim=128,
        rope_parameters={**YARN, **more, "partial_rotary_factor": partial, "rope_theta": 1e4},
    )
    inverse, expected = utils.ROPE_INIT_FUNCTIONS["yarn"](theirs, device="cpu")
    np.testing.assert_allclose(rope.frequencies(config), inverse.numpy(), rtol=2e-6)
    assert rope.attention_factor(config) == pytest.approx(expected, rel=1e-12)


LONGROPE = dataclasses.replace(
    CONFIG,
    rope_scaling="longrope",
    rope_factor=4.0,
    rope_original_len=8,
    rope_short_factors=tuple(1 + 0.01 * i for i in range(64)),
    rope_long_factors=tuple(2 + 0.1 * i for i in range(64)),
)
DYNAMIC = dataclasses.replace(CONFIG, rope_scaling="dynamic", rope_factor=4.0, rope_original_len=8)


@pytest.mark.reference
@pytest.mark.parametrize("length", [8, 9, 20])
@pytest.mark.parametrize("config", [LONGROPE, DYNAMIC], ids=lambda c: c.rope_scaling)
def test_rotation_by_length_is_that_of_transformers(config, length):
    pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    given = {"rope_type": config.rope_scaling, "factor": 4.0, "rope_theta": 1e4}
    if config is LONGROPE:
        given |= {
            "original_max_position_embeddings": 8,
            "short_factor": list(config.rope_short_factors),
            "long_factor": list(config.rope_long_factors),
        }
    theirs = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        head_dim=128,
        max_position_embeddings=8,
        rope_parameters=given,
    )
    init = utils.ROPE_INIT_FUNCTIONS[config.rope_scaling]
    inverse, factor = init(theirs, device="cpu", seq_len=length)
    by = rope.rotation(config, jnp.arange(length, dtype=jnp.int32)[None])
    phase = np.arange(length)[:, None] * inverse.numpy().astype(np.float64)
    np.testing.assert_allclose(by.cos[0, :, 0], factor * np.cos(phase), atol=2e-6 * length)
    np.testing.assert_allclose(by.sin[0, :, 0], factor * np.sin(phase), atol=2e-6 * length)


@pytest.mark.parametrize("config", [LONGROPE, DYNAMIC], ids=lambda c: c.rope_scaling)
def test_rotation_goes_by_the_length_of_the_document_alone(config):
    packed_BT = jnp.asarray([[*range(20), *range(3), 0, 0]], jnp.int32)
    packed = rope.rotation(config, packed_BT)
    alone = rope.rotation(config, jnp.arange(3, dtype=jnp.int32)[None])
    np.testing.assert_array_equal(packed.cos[:, 20:23], alone.cos)
    assert not np.allclose(packed.cos[:, 1], packed.cos[:, 21])  # position 1 in either
    given = rope.rotation(
        config, jnp.arange(3, dtype=jnp.int32)[None], jnp.full((1, 3), 20, jnp.int32)
    )
    np.testing.assert_allclose(given.cos, packed.cos[:, :3], atol=1e-6)


def test_document_lengths_are_read_off_positions():
    positions_BT = jnp.asarray([[0, 1, 2, 0, 0, 1, 0], [0, 1, 2, 3, 4, 5, 6]], jnp.int32)
    expected = [[3, 3, 3, 1, 2, 2, 1], [7] * 7]
    np.testing.assert_array_equal(rope.document_lengths(positions_BT), expected)


def test_dimensions_beyond_the_fraction_are_not_turned():
    config = dataclasses.replace(CONFIG, rope_frac=0.25)
    x_BTNH = jnp.asarray(np.random.default_rng(0).standard_normal((1, 3, 2, 128)), jnp.float32)
    by = rope.rotation(config, jnp.arange(3, dtype=jnp.int32)[None])
    turned = rope.rotate(x_BTNH, by)
    np.testing.assert_array_equal(turned[..., 32:], x_BTNH[..., 32:])
    assert np.all(np.asarray(turned != x_BTNH)[0, 1:, :, :32].any(-1))


def test_layers_with_a_window_turn_by_their_own_base():
    config = dataclasses.replace(
        CONFIG, window=4, rope_local_base=50.0, rope_scaling="linear", rope_factor=2.0
    )
    positions_BT = jnp.asarray([[5]], jnp.int32)
    both = rope.rotations(config, positions_BT)
    angle = 5 * 50.0 ** -(np.arange(64) / 64)
    np.testing.assert_allclose(both.of(4).cos[0, 0, 0], np.cos(angle), atol=1e-6)
    angle = 5 * 10_000.0 ** -(np.arange(64) / 64) / 2
    np.testing.assert_allclose(both.of(None).cos[0, 0, 0], np.cos(angle), atol=1e-6)


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
