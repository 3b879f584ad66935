"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864).

The layout is half-split, as in Hugging Face checkpoints: dimension i pairs with i + H/2, not with
its neighbour. Wavelengths are made in float64 on the host, phases in float32 on the device under
every precision recipe: a bfloat16 phase is off by several radians at position 4095.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxtrain.models.config import ModelConfig


class Rotation(NamedTuple):
    """Cosine and sine of every token's phases, shared by all heads and layers."""

    cos: Float[jax.Array, "B T 1 half"]
    sin: Float[jax.Array, "B T 1 half"]


def frequencies(config: ModelConfig) -> np.ndarray:
    """Radians per position of each of the head_dim/2 pairs, float64.

    Unscaled: base^(−2i/H). `linear` divides them all by the factor (position interpolation, Chen et
    al. 2023, arXiv 2306.15595). `llama3` (Llama 3.1) divides those of wavelengths longer than
    original_len / low_freq_factor, keeps those shorter than original_len / high_freq_factor, and
    blends in between, linearly in original_len / wavelength.
    """
    frequency = config.rope_base ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    if config.rope_scaling == "none":
        return frequency
    stretched = frequency / config.rope_factor
    if config.rope_scaling == "linear":
        return stretched
    assert config.rope_original_len is not None, config
    turns = config.rope_original_len * frequency / (2 * np.pi)
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return keep * frequency + (1 - keep) * stretched


def rotation(config: ModelConfig, positions_BT: Int[jax.Array, "B T"]) -> Rotation:
    """Float32 cosines and sines for integer positions."""
    frequency = jnp.asarray(frequencies(config), jnp.float32)
    phase = positions_BT.astype(jnp.float32)[:, :, None, None] * frequency[None, None, None, :]
    return Rotation(jnp.cos(phase), jnp.sin(phase))


def rotate(x_BTNH: Float[jax.Array, "B T N H"], by: Rotation) -> Float[jax.Array, "B T N H"]:
    """Turns each pair (i, i + H/2) of every head by its phase; float32 inside, `x`'s dtype out."""
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    turned = (first * by.cos - second * by.sin, second * by.cos + first * by.sin)
    return jnp.concatenate(turned, axis=-1).astype(x_BTNH.dtype)
