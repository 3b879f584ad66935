"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) and its stretches to long contexts.

The layout is half-split, as in most Hugging Face checkpoints: dimension i pairs with i + H/2, not
with its neighbour (`rope_interleaved`). Wavelengths are made in float64 on the host, phases in
float32 on the device under every precision recipe: a bfloat16 phase is off by several radians at
position 4095.

Two scalings depend on how long the text is. Here that is the length of a token's own document,
not of the batch around it, so that a document has the same logits alone, padded and packed.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxtrain.models.config import ModelConfig


class Rotation(NamedTuple):
    """Cosine and sine of every token's phases, shared by all heads."""

    cos: Float[jax.Array, "B T 1 half"]
    sin: Float[jax.Array, "B T 1 half"]


class Rotations(NamedTuple):
    """Those of the layers without a window and of the layers with one."""

    full: Rotation
    local: Rotation

    def of(self, window: int | None) -> Rotation:
        """The rotation of a layer, by its window."""
        return self.full if window is None else self.local


def frequencies(config: ModelConfig, *, is_long: bool = False) -> np.ndarray:
    """Radians per position of each of the rope_dim/2 pairs, float64.

    Unscaled: base^(−2i/H). `linear` divides them all by the factor (position interpolation, Chen et
    al. 2023, arXiv 2306.15595). `llama3` (Llama 3.1) divides those of wavelengths longer than
    original_len / low_freq_factor, keeps those shorter than original_len / high_freq_factor, and
    blends in between, linearly in original_len / wavelength. `yarn` (Peng et al. 2023, arXiv
    2309.00071) blends linearly in the pair's index, between the pairs that turn beta_fast and
    beta_slow times in original_len. `longrope` (Ding et al. 2024, arXiv 2402.13753) divides each
    pair by a factor of its own. `dynamic` is unscaled here: see `rotation`.

    Args:
      is_long: longrope: of documents longer than rope_original_len.
    """
    frequency = _unscaled(config, config.rope_base)
    if config.rope_scaling in ("none", "dynamic"):
        return frequency
    if config.rope_scaling == "longrope":
        factors = config.rope_long_factors if is_long else config.rope_short_factors
        return frequency / np.asarray(factors, np.float64)
    stretched = frequency / config.rope_factor
    if config.rope_scaling == "linear":
        return stretched
    keep = _kept_by_yarn(config) if config.rope_scaling == "yarn" else _kept_by_llama3(config)
    return keep * frequency + (1 - keep) * stretched


def attention_factor(config: ModelConfig) -> float:
    """What cosines and sines are multiplied by, so that attention stays as sharp in long contexts.

    yarn: 0.1 · ln(factor) + 1 (arXiv 2309.00071, eq. 22); longrope: sqrt(1 + ln(factor) /
    ln(original_len)) (arXiv 2402.13753, section 3.2); unless the config gives the number.
    """
    if config.rope_attention_factor is not None:
        return config.rope_attention_factor
    if config.rope_scaling == "yarn":
        return 0.1 * math.log(config.rope_factor) + 1
    if config.rope_scaling == "longrope" and config.rope_factor > 1:
        return math.sqrt(1 + math.log(config.rope_factor) / math.log(_original_len(config)))
    return 1.0


def rotations(
    config: ModelConfig,
    positions_BT: Int[jax.Array, "B T"],
    lengths_BT: Int[jax.Array, "B T"] | None = None,
) -> Rotations:
    """The rotations of all layers; arguments as of `rotation`."""
    full = rotation(config, positions_BT, lengths_BT)
    if config.rope_local_base is None:
        return Rotations(full, full)
    return Rotations(full, _rotation(_unscaled(config, config.rope_local_base), positions_BT))


def rotation(
    config: ModelConfig,
    positions_BT: Int[jax.Array, "B T"],
    lengths_BT: Int[jax.Array, "B T"] | None = None,
) -> Rotation:
    """Float32 cosines and sines for integer positions.

    Args:
      lengths_BT: tokens of the document that a token is in, for the scalings that go by it
        (longrope: whether it is longer than original_len; dynamic: NTK-aware scaling, which for a
        document of length S > original_len raises the base to base · (factor · S / original_len −
        factor + 1)^(H/(H−2))). None: read off the positions, which start again in each document.
    """
    if config.rope_scaling not in ("dynamic", "longrope"):
        by = _rotation(frequencies(config), positions_BT)
    else:
        lengths_BT = document_lengths(positions_BT) if lengths_BT is None else lengths_BT
        length = lengths_BT.astype(jnp.float32)[:, :, None, None]
        by = _turned(positions_BT, _frequency_by_length(config, length))
    factor = attention_factor(config)
    return by if factor == 1 else Rotation(by.cos * factor, by.sin * factor)


def document_lengths(positions_BT: Int[jax.Array, "B T"]) -> Int[jax.Array, "B T"]:
    """How long the document of each token is, from positions that start again in each."""
    is_last = positions_BT[:, 1:] <= positions_BT[:, :-1]
    is_last = jnp.concatenate([is_last, jnp.ones_like(positions_BT[:, :1], bool)], axis=1)
    length = positions_BT.shape[1]
    index = jnp.where(is_last, jnp.arange(length, dtype=jnp.int32)[None], length)
    return 1 + jnp.take_along_axis(
        positions_BT, jax.lax.cummin(index, axis=1, reverse=True), axis=1
    )


def rotate(
    x_BTNH: Float[jax.Array, "B T N H"], by: Rotation, *, interleaved: bool = False
) -> Float[jax.Array, "B T N H"]:
    """Turns each pair (i, i + dim/2) of a head's first dimensions by its phase; the rest stays.

    Float32 inside, `x`'s dtype out.

    Args:
      interleaved: pairs are (2i, 2i + 1). They come out half-split all the same: products of
        queries and keys that were both turned do not tell.
    """
    half = by.cos.shape[-1]
    rest = x_BTNH[..., 2 * half :]
    wide = x_BTNH[..., : 2 * half].astype(jnp.float32)
    if interleaved:
        first, second = wide[..., 0::2], wide[..., 1::2]
    else:
        first, second = jnp.split(wide, 2, axis=-1)
    turned = (first * by.cos - second * by.sin, second * by.cos + first * by.sin)
    turned = jnp.concatenate(turned, axis=-1).astype(x_BTNH.dtype)
    return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned


def _unscaled(config: ModelConfig, base: float) -> np.ndarray:
    return base ** -(np.arange(0, config.rope_dim, 2) / config.rope_dim)


def _original_len(config: ModelConfig) -> int:
    assert config.rope_original_len is not None, config
    return config.rope_original_len


def _kept_by_llama3(config: ModelConfig) -> np.ndarray:
    """Which part of each pair's frequency is not stretched."""
    turns = _original_len(config) * _unscaled(config, config.rope_base) / (2 * np.pi)
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    return np.clip((turns - low) / (high - low), 0, 1)


def _kept_by_yarn(config: ModelConfig) -> np.ndarray:
    """Which part of each pair's frequency is not stretched."""

    def pair_that_turns(times: float) -> float:
        """The (fractional) pair that turns so often in original_len."""
        log_ratio = math.log(_original_len(config) / (times * 2 * math.pi))
        return config.rope_dim * log_ratio / (2 * math.log(config.rope_base))

    low, high = pair_that_turns(config.rope_beta_fast), pair_that_turns(config.rope_beta_slow)
    if config.rope_truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rope_dim - 1)
    if low == high:
        high += 0.001  # as the reference implementation does
    return 1 - np.clip((np.arange(config.rope_dim // 2) - low) / (high - low), 0, 1)


def _frequency_by_length(config: ModelConfig, length: jax.Array) -> jax.Array:
    """[B, T, 1, half] for lengths [B, T, 1, 1] in float32."""
    original = float(_original_len(config))
    frequency = jnp.asarray(frequencies(config), jnp.float32)[None, None, None, :]
    if config.rope_scaling == "longrope":
        long = jnp.asarray(frequencies(config, is_long=True), jnp.float32)[None, None, None, :]
        return jnp.where(length > original, long, frequency)
    factor = config.rope_factor
    growth = factor * jnp.maximum(length, original) / original - (factor - 1)
    dim = config.rope_dim  # base^(−2i/H) · growth^(−2i/(H−2)), the base raised as above
    exponent = -np.arange(0, dim, 2) / (dim - 2) if dim > 2 else np.zeros(1)
    return frequency * growth ** jnp.asarray(exponent, jnp.float32)[None, None, None, :]


def _rotation(frequency: np.ndarray, positions_BT: jax.Array) -> Rotation:
    return _turned(positions_BT, jnp.asarray(frequency, jnp.float32)[None, None, None, :])


def _turned(positions_BT: jax.Array, frequency: jax.Array) -> Rotation:
    phase = positions_BT.astype(jnp.float32)[:, :, None, None] * frequency
    return Rotation(jnp.cos(phase), jnp.sin(phase))
