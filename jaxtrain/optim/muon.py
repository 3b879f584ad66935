"""Muon's direction: the momentum of each matrix, orthogonalized by Newton–Schulz.

    m ← μ m + (1 − μ) g,   u = μ m + (1 − μ) g        Nesterov momentum
    u = U Σ Vᵀ   →   O ≈ U Vᵀ                         five quintic Newton–Schulz iterations
    direction = 0.2 · √max(fan_in, fan_out) · O

Newton–Schulz and its coefficients: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
Singular values above 0.3% of the Frobenius norm end between 0.68 and 1.20, not at 1, on purpose:
the coefficients maximise the slope at 0. The factor in front makes the root mean square of an
update's entries about 0.2 whatever the shape, which is about AdamW's, so that AdamW's learning rate
and weight decay serve both (Liu et al. 2025, arXiv 2502.16982, Moonlight).

What is one matrix follows from the dimension letters (`groups.layout`): every layer of a stack by
itself, and the heads of a projection together, "LDNH" as L matrices of D × (N·H).

Not `optax.contrib.muon`: it corrects the bias of both Nesterov terms, which is another direction
than the published one, runs the AdamW part with Nesterov too, iterates in the momentum's dtype
only, and keeps its coefficients in the optimizer state.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxtrain.optim.groups import layout
from jaxtrain.types import Array

#: X ← a X + (b A + c A²) X with A = X Xᵀ; Jordan et al.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
#: Root mean square of an update's entries before the learning rate: about AdamW's (Moonlight).
UPDATE_RMS = 0.2
_NORM_EPS = 1e-7  # as torch.optim.Muon: keeps a gradient of zeros finite


class MuonState(NamedTuple):
    """The momentum, like the parameters."""

    momentum: Any


def scale_by_muon(axes: Any, momentum: float) -> optax.GradientTransformation:
    """Replaces the gradient of each matrix by its direction (see the module docstring).

    Every parameter that it is given must be a matrix; where a tree holds others, mask them
    (`optax.partition`).

    Args:
      axes: the dimension letters of the parameters, masked ones included.
      momentum: decay rate μ of the gradient average.
    """

    def init(params: Any) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MuonState]:
        del params
        average = functools.partial(jax.tree.map, lambda m, g: momentum * m + (1 - momentum) * g)
        new = average(state.momentum, updates)
        directions = jax.tree.map(
            lambda u, letters: u if _is_masked(u) else _direction(u, letters),
            average(new, updates),
            axes,
            is_leaf=_is_masked,
        )
        return directions, MuonState(new)

    return optax.GradientTransformation(init, update)


def newton_schulz(x: Float[Array, "stack rows cols"], dtype: DTypeLike) -> Array:
    """About U Vᵀ of each matrix U Σ Vᵀ, by products of `dtype` that accumulate in float32.

    Every intermediate is rounded to `dtype` once, and only its rounded form is used after that:
    the terms of the polynomial have opposite signs, so an error that all of them share mostly
    cancels, and one that they do not share is amplified.
    """

    def product(subscripts: str, left: Array, right: Array) -> Array:
        return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)

    a, b, c = COEFFICIENTS
    # The Gram matrix of the shorter side costs least; either gives the same result.
    wide = x.shape[1] <= x.shape[2]

    def iterate(_: Any, y: Array) -> Array:
        gram = product("sij,skj->sik" if wide else "sji,sjk->sik", y, y).astype(dtype)
        poly = b * gram.astype(jnp.float32) + c * product("sij,sjk->sik", gram, gram)
        factors = (poly.astype(dtype), y) if wide else (y, poly.astype(dtype))
        return (a * y.astype(jnp.float32) + product("sij,sjk->sik", *factors)).astype(dtype)

    norm = jnp.sqrt(jnp.sum(jnp.square(x), axis=(1, 2), keepdims=True))
    y = (x / jnp.maximum(norm, _NORM_EPS)).astype(dtype)
    # A loop, not unrolled: as fast, and XLA keeps the temporaries of one matrix at a time.
    return jax.lax.fori_loop(0, NUM_ITERATIONS, iterate, y).astype(jnp.float32)


def _direction(u: Array, letters: str) -> Array:
    stacked, sides = layout(letters)
    start = len(stacked)
    rows = math.prod(u.shape[start : start + len(sides[0])])
    cols = math.prod(u.shape[start + len(sides[0]) :])
    # bfloat16 operands are what accelerators are fast at and enough for directions (Jordan et al.);
    # CPUs have no use for them. Decided by what the program is lowered for, not where.
    orthogonal = jax.lax.platform_dependent(
        u.reshape(-1, rows, cols),
        cpu=functools.partial(newton_schulz, dtype=jnp.float32),
        default=functools.partial(newton_schulz, dtype=jnp.bfloat16),
    )
    return (UPDATE_RMS * math.sqrt(max(rows, cols))) * orthogonal.reshape(u.shape)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)
