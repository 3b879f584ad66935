"""Optimizer moments in 8 bits: a code for each element, a scale for each block of 256.

Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861. A block is
divided by its largest magnitude, and each element becomes one of 256 numbers between −1 and 1 (0
and 1 for second moments) that are dense where moments are: seven decades, the larger ones in finer
steps ("dynamic tree"). Blocks run along the last dimension, so codes have the shape of their
parameter and are sharded like it.

Rounding is stochastic, where the paper's is to nearest: a moment with decay 0.99 moves by less than
half a step of its code at a time, and would stand still (Lion lost a factor of 3 on a toy).

Only matrices are kept so (`groups.py`): embeddings, the head, norms and biases stay in float32, as
the authors advise for embeddings, and since the others are small.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

BLOCK = 256
_DECADES = 7
_SECOND = "nu"  # optax's name of second moments, which have no sign


class Moments(NamedTuple):
    """The state of a transformation, its moments in 8 bits."""

    codes: Any  # the transformation's own state, with codes in the place of moments
    scales: Any  # likewise with scales


def in_eight_bits(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """`transform`, a `scale_by_adam` or `scale_by_lion`, with its moments in 8 bits.

    An update computes in float32 from what the codes stand for, and is applied before the new
    moments are rounded.
    """

    def init(params: Any) -> Moments:
        return _compress(transform.init(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Moments]:
        updates, new = transform.update(updates, _expand(state), params)
        return updates, _compress(new)

    return optax.GradientTransformation(init, update)


def _compress(state: Any) -> Moments:
    """Trees of moments have 8 bits; a counter, which has no scale, stays with the codes."""
    codes, scales = {}, {}
    rng = jax.random.fold_in(jax.random.key(0), state.count)  # resumes with it, bit for bit
    for index, name in enumerate(_moments(state)):
        leaves, structure = jax.tree.flatten(getattr(state, name))
        rngs = jax.random.split(jax.random.fold_in(rng, index), max(1, len(leaves)))
        pairs = [
            encode(leaf, rng, signed=name != _SECOND)
            for leaf, rng in zip(leaves, rngs[: len(leaves)], strict=True)
        ]
        codes[name] = structure.unflatten([code for code, _ in pairs])
        scales[name] = structure.unflatten([scale for _, scale in pairs])
    return Moments(state._replace(**codes), scales)


def _expand(state: Moments) -> Any:
    moments = {}
    for name in _moments(state.codes):
        part = functools.partial(decode, signed=name != _SECOND)
        moments[name] = jax.tree.map(part, getattr(state.codes, name), state.scales[name])
    return state.codes._replace(**moments)


def _moments(state: Any) -> list[str]:
    return [name for name in state._fields if name in ("mu", _SECOND)]


def codebook(*, signed: bool) -> np.ndarray:
    """The 256 numbers that codes stand for, in order; float32.

    Decade k = 0 … 6 below 1 holds 2^(7 - k) numbers, or of each sign half as many: the middles of
    as many equal parts of [0.1, 1] · 10^-k. 0 and 1 are the last two.
    """
    numbers = [0.0, 1.0]
    for decade in range(_DECADES):
        num = 2 ** (_DECADES - 1 - decade) if signed else 2 ** (_DECADES - decade)
        edges = np.linspace(0.1, 1.0, num + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0**-decade
        numbers += [*middles, *-middles] if signed else [*middles]
    found = np.unique(np.asarray(numbers, np.float32))
    assert len(found) <= 256, len(found)
    return found


def encode(x: jax.Array, rng: jax.Array, *, signed: bool) -> tuple[jax.Array, jax.Array]:
    """Codes (uint8, of x's shape) and scales (float32, one for each block of the last dimension).

    An element becomes one of its two neighbours in the codebook, the nearer one the more often, so
    that the expected value is the element. Without a sign, what is not 0 does not become 0: an
    update divides by its root.

    Args:
      rng: key of the rounding.
    """
    blocks, book = _blocks(x), jnp.asarray(codebook(signed=signed))
    scales = jnp.max(jnp.abs(blocks), axis=-1)
    unit = blocks / jnp.where(scales > 0, scales, 1.0)[..., None]
    below = jnp.clip(jnp.searchsorted(book, unit, side="right") - 1, 0, len(book) - 2)
    way = (unit - book[below]) / (book[below + 1] - book[below])
    codes = below + (jax.random.uniform(rng, unit.shape) < way).astype(below.dtype)
    if not signed:
        codes = jnp.maximum(codes, (blocks > 0).astype(codes.dtype))
    return _unblocks(codes.astype(jnp.uint8), x.shape), scales


def decode(codes: jax.Array, scales: jax.Array, *, signed: bool) -> jax.Array:
    """What codes stand for, in float32."""
    values = jnp.asarray(codebook(signed=signed))[_blocks(codes).astype(jnp.int32)]
    return _unblocks(values * scales[..., None], codes.shape)


def _blocks(x: jax.Array) -> jax.Array:
    """[…, n] as […, blocks, 256], filled up with zeros."""
    padding = -x.shape[-1] % BLOCK
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])
    return x.reshape(*x.shape[:-1], -1, BLOCK)


def _unblocks(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return blocks.reshape(*shape[:-1], -1)[..., : shape[-1]]
