"""Products of activations and weights in FP8: E4M3 forward, E5M2 gradients, all three in FP8.

    y  = x · w        E4M3 · E4M3
    dx = g · wᵀ       E5M2 · E4M3
    dw = xᵀ · g       E4M3 · E5M2

One scale per tensor (arXiv 2209.05433): from the tensor itself ("current"), or from the largest
magnitude of the last updates ("delayed"), which needs no pass over the tensor ahead of the cast.
Values accumulate in float32; a scale is a power of two, so it is applied without rounding.
Gradients may be rounded stochastically (`quantize.cast`).

Under delayed scaling the gradient with respect to `probe` is what the pass has seen of `TENSORS`:
it leaves the loop over layers, and whatever recomputes, as any gradient does.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain.precision.quantization import TENSORS
from jaxtrain.precision.quantize import E4M3, max_magnitude, scale_for, with_scale


class Spec(NamedTuple):
    """What is compiled in."""

    num_contracted: int
    gradient_dtype: type
    grad_reduce_dtype: type  # see `precision.recipe`
    name: str  # for profiles and compiled programs


class _Quantized(NamedTuple):
    values: jax.Array
    scale: jax.Array
    amax: jax.Array | None  # of the unscaled tensor, where someone asks


def _quantize(
    x: jax.Array,
    dtype: type,
    history: jax.Array | None,
    probe: jax.Array | None,
    tensor: str,
    rng: jax.Array | None = None,
) -> _Quantized:
    is_measured = history is None or probe is not None
    amax = max_magnitude(x) if is_measured else None
    if history is None:
        assert amax is not None
        of_scale = amax
    else:
        of_scale = jnp.max(history[TENSORS.index(tensor)])
    scale = scale_for(of_scale, dtype)
    return _Quantized(with_scale(x, scale, dtype, rng), scale, amax)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(
    spec: Spec,
    x: jax.Array,
    w: jax.Array,
    history: jax.Array | None,
    probe: jax.Array | None,
    rng: jax.Array | None = None,
) -> jax.Array:
    """Contracts the last dimensions of x with the first of w; in the dtype of x, which w may exceed.

    Args:
      history: the largest magnitudes of the last updates, [tensor, update]; None: current scaling.
      probe: any [tensor] where largest magnitudes are to be measured; None: not.
      rng: key of stochastic rounding of the gradient; None: to nearest.
    """
    return _forward(spec, x, w, history, probe, rng)[0]


def _forward(spec: Spec, x, w, history, probe, rng):
    n, leading = spec.num_contracted, x.ndim - spec.num_contracted
    with jax.named_scope(f"{spec.name}:output"):
        qx = _quantize(x, E4M3, history, probe, "input")
        qw = _quantize(w.astype(x.dtype), E4M3, history, probe, "weight")
        of_x, of_w = tuple(range(leading, x.ndim)), tuple(range(n))
        y = _dot(qx, qw, (of_x, of_w), x.dtype)
    # An empty array of the weight's dtype, which is all that the gradient has to know of it.
    return y, (qx, qw, jnp.zeros((0,), w.dtype), history, probe, rng)


def _backward(spec: Spec, residuals, g):
    qx, qw, like_w, history, probe, rng = residuals
    n, leading = spec.num_contracted, qx.values.ndim - spec.num_contracted
    with jax.named_scope(f"{spec.name}:gradient"):
        qg = _quantize(g, spec.gradient_dtype, history, probe, "gradient", rng)
    outputs = tuple(range(leading, g.ndim))
    with jax.named_scope(f"{spec.name}:d_input"):
        d_x = _dot(qg, qw, (outputs, tuple(range(n, qw.values.ndim))), g.dtype)
    with jax.named_scope(f"{spec.name}:d_weight"):
        rows = tuple(range(leading))
        d_w = _dot(qx, qg, (rows, rows), spec.grad_reduce_dtype).astype(like_w.dtype)
    d_history = None if history is None else jnp.zeros_like(history)
    if probe is None:
        return d_x, d_w, d_history, None, None
    seen = [each.amax for each in (qx, qw, qg) if each.amax is not None]
    return d_x, d_w, d_history, jnp.stack(seen), None


product.defvjp(_forward, _backward)


def _dot(a: _Quantized, b: _Quantized, contracted, dtype) -> jax.Array:
    """Accumulates in float32, rounds once to `dtype`, then shifts exponents by the scales."""
    y = lax.dot_general(a.values, b.values, (contracted, ((), ())), preferred_element_type=dtype)
    return y * (a.scale * b.scale).astype(dtype)
