"""How far apart two results are, found out on the device that they are on."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def largest_error(actual: jax.Array, expected: jax.Array) -> float:
    """Largest difference over the largest expected value; infinite of what is not finite."""
    if actual.shape != expected.shape:
        return float("inf")
    return _or_infinite(_largest(actual, expected))


def overall_error(actual: Any, expected: Any) -> float:
    """Norm of the difference over the norm of what is expected, of whole trees; or infinite."""
    return _or_infinite(_overall(actual, expected))


def same_bits(a: Any, b: Any) -> bool:
    """Whether two trees are equal bit for bit."""
    return bool(_same_bits(a, b))


@jax.jit
def _largest(actual: jax.Array, expected: jax.Array) -> jax.Array:
    actual, expected = actual.astype(jnp.float32), expected.astype(jnp.float32)
    return jnp.max(jnp.abs(actual - expected)) / jnp.maximum(jnp.max(jnp.abs(expected)), 1e-30)


@jax.jit
def _overall(actual: Any, expected: Any) -> jax.Array:
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    wide = [(a.astype(jnp.float32), b.astype(jnp.float32)) for a, b in pairs]
    differences = sum(jnp.sum(jnp.square(a - b)) for a, b in wide)
    norms = sum(jnp.sum(jnp.square(b)) for _, b in wide)
    return jnp.sqrt(differences / jnp.maximum(norms, 1e-30))


@jax.jit
def _same_bits(a: Any, b: Any) -> jax.Array:
    def same(x: jax.Array, y: jax.Array) -> jax.Array:
        a, b = (lax.bitcast_convert_type(each, _BITS[x.dtype.itemsize]) for each in (x, y))
        return jnp.array_equal(a, b)

    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jnp.all(jnp.stack([same(x, y) for x, y in pairs]))


def _or_infinite(error: jax.Array) -> float:
    return float(error) if jnp.isfinite(error) else float("inf")
