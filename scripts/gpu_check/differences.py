"""How far apart two results are."""

from typing import Any

import jax
import numpy as np


def largest_error(actual: jax.Array, expected: jax.Array) -> float:
    """Largest difference over the largest expected value; infinite of what is not finite."""
    a, b = (np.asarray(x, np.float64) for x in (actual, expected))
    if a.shape != b.shape or not np.isfinite(a).all():
        return float("inf")
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


def overall_error(actual: Any, expected: Any) -> float:
    """Norm of the difference over the norm of what is expected, of whole trees."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    arrays = [tuple(np.asarray(x, np.float64) for x in pair) for pair in pairs]
    squares = [(np.sum((a - b) ** 2), np.sum(b**2)) for a, b in arrays]
    differences, norms = (sum(column) for column in zip(*squares, strict=True))
    error = float(np.sqrt(differences / max(norms, 1e-30)))
    return error if np.isfinite(error) else float("inf")


def same_bits(a: Any, b: Any) -> bool:
    """Whether two trees are equal bit for bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)
