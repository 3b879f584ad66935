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

import dataclasses
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.typing import DTypeLike

from jaxtrain.precision import operands
from jaxtrain.precision.operands import Measure
from jaxtrain.precision.quantization import TENSORS


class Spec(NamedTuple):
    """What is compiled in."""

    num_contracted: int
    gradient_dtype: type
    grad_reduce_dtype: type  # see `precision.recipe`
    name: str  # for profiles and compiled programs


def product(
    spec: Spec,
    x: jax.Array,
    w: jax.Array,
    history: jax.Array | None,
    probe: jax.Array | None,
    rng: jax.Array | None = None,
) -> jax.Array:
    """Contracts the last dimensions of x with the first of w, which is cast to the dtype of x.

    Args:
      history: the largest magnitudes of the last updates, [tensor, update]; None: current scaling.
      probe: any [tensor] where largest magnitudes are to be measured; None: not.
      rng: key of stochastic rounding of the gradient; None: to nearest.
    """
    of_x, of_w, of_gradient = measures(history, probe)
    dtype = x.dtype.type
    with jax.named_scope(f"{spec.name}:output"):
        cast_x = operands.in_e4m3(x, of_x)
        cast_w = operands.in_e4m3(w, of_w, (), dtype, spec.grad_reduce_dtype)
    way = operands.Spec(_Contraction(spec.num_contracted), dtype, spec.gradient_dtype, spec.name)
    return operands.multiply(way, cast_x, cast_w, of_gradient, rng)


def measures(history: jax.Array | None, probe: jax.Array | None) -> tuple[Measure, ...]:
    """What the scale of each of `TENSORS` is made of."""
    each = range(len(TENSORS))
    return tuple(
        Measure(None if history is None else history[i], None if probe is None else probe[i])
        for i in each
    )


@dataclasses.dataclass(frozen=True)
class _Contraction:
    """Of the last dimensions of x with the first of w."""

    num_contracted: int

    def output(self, x: jax.Array, w: jax.Array, where: Any, dtype: DTypeLike) -> jax.Array:
        leading = x.ndim - self.num_contracted
        of_x, of_w = range(leading, x.ndim), range(self.num_contracted)
        return _dot(x, w, of_x, of_w, dtype)

    def d_input(self, g: jax.Array, w: jax.Array, where: Any, dtype: DTypeLike) -> jax.Array:
        outputs = range(self.num_contracted, w.ndim)
        return _dot(g, w, range(g.ndim - len(outputs), g.ndim), outputs, dtype)

    def d_weight(self, x: jax.Array, g: jax.Array, where: Any, dtype: DTypeLike) -> jax.Array:
        rows = range(x.ndim - self.num_contracted)
        return _dot(x, g, rows, rows, dtype)


def _dot(a: jax.Array, b: jax.Array, of_a: range, of_b: range, dtype: DTypeLike) -> jax.Array:
    """Accumulates in float32 and rounds once to `dtype`."""
    contracted = (tuple(of_a), tuple(of_b))
    return lax.dot_general(a, b, (contracted, ((), ())), preferred_element_type=dtype)
