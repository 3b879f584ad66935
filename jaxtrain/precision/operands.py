"""Operands brought into their format once, ahead of the products that they go into.

    w = in_e4m3(…)                          array ≈ values · scale
    y = multiply(spec, x, w, …)             values by values, in the way of spec.products

Between the two an operand may travel (`moved`): a scale is of the whole tensor, wherever its parts
are, and FP8 crosses the wire. `array` only carries gradients backwards: no product reads it, so XLA
leaves it and all that happens to it out of the program.

`fp8.py` says what scales, histories and probes are, and does both for a matrix.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jaxtrain.precision.quantize import E4M3, max_magnitude, scale_for, with_scale


@runtime_checkable
class Products(Protocol):
    """How values multiply: hashable, with no values of its own; `where` is what a way asks for."""

    def output(self, x: jax.Array, w: jax.Array, where: Any, dtype: DTypeLike) -> jax.Array:
        """x · w."""
        ...

    def d_input(self, g: jax.Array, w: jax.Array, where: Any, dtype: DTypeLike) -> jax.Array:
        """g · wᵀ."""
        ...

    def d_weight(self, x: jax.Array, g: jax.Array, where: Any, dtype: DTypeLike) -> jax.Array:
        """xᵀ · g."""
        ...


class Operand(NamedTuple):
    """array ≈ values · scale; no scale: 1. Of all that is an `array`; or specs, or gradients."""

    array: Any
    values: Any
    scale: Any

    def moved(self, move: Callable[[jax.Array], jax.Array]) -> "Operand":
        """With its elements elsewhere, and perhaps zeros beside them; `move` does no arithmetic."""
        if self.scale is None:
            return Operand(move(self.array), move(self.values), None)
        # As bytes: XLA widens small floats where it has no kernel for them.
        values = move(lax.bitcast_convert_type(self.values, jnp.uint8))
        values = lax.bitcast_convert_type(values, self.values.dtype)
        return Operand(move(self.array), values, self.scale)


class Spec(NamedTuple):
    """What is compiled in."""

    products: Products
    dtype: type  # of outputs and of gradients of inputs
    gradient_dtype: type | None  # that gradients are cast to; None: they are not
    name: str  # for profiles and compiled programs
    axes: tuple[str, ...] = ()  # inside of a shard_map, those that a tensor is spread over


class Measure(NamedTuple):
    """What a scale is made of, arrays or None: see `fp8.product`."""

    history: Any  # [update]
    probe: Any  # []


class _Cast(NamedTuple):
    dtype: type
    grad_dtype: type
    axes: tuple[str, ...]


def in_e4m3(
    x: jax.Array,
    measure: Measure,
    axes: tuple[str, ...] = (),
    dtype: type | None = None,
    grad_dtype: type | None = None,
) -> Operand:
    """x in E4M3 under one scale.

    Args:
      axes: inside of a shard_map, those that x is spread over.
      dtype: that x is rounded to before; None: its own.
      grad_dtype: of its gradient, as it is added up over a mesh; None: that of x.
    """
    cast = _Cast(dtype or x.dtype.type, grad_dtype or x.dtype.type, axes)
    found: Any = _in_e4m3(cast, x, measure)
    return Operand(found[0], *map(lax.stop_gradient, found[1:]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_e4m3(cast: _Cast, x, measure) -> tuple[jax.Array, jax.Array, jax.Array]:
    return _in_e4m3_forward(cast, x, measure)[0]


def _in_e4m3_forward(cast: _Cast, x, measure):
    values, scale, amax = _quantized(x.astype(cast.dtype), E4M3, measure, cast.axes)
    # An empty array of the dtype, which is all that the gradient has to know of x.
    return (x.astype(cast.grad_dtype), values, scale), (amax, jnp.zeros((0,), x.dtype))


def _in_e4m3_backward(cast: _Cast, residuals, gradients):
    amax, like_x = residuals
    return gradients[0].astype(like_x.dtype), Measure(None, amax)


_in_e4m3.defvjp(_in_e4m3_forward, _in_e4m3_backward)


def _quantized(x, dtype, measure: Measure, axes, rng=None):
    """(values, scale, the largest magnitude of this device's part or None)."""
    is_read = measure.history is None or measure.probe is not None
    amax: Any = max_magnitude(x) if is_read else None
    if measure.history is not None:
        of_scale = jnp.max(measure.history)
    else:
        of_scale = lax.pmax(amax, axes) if axes else amax
    scale = scale_for(of_scale, dtype)
    return with_scale(x, scale, dtype, rng), scale, None if measure.probe is None else amax


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(
    spec: Spec,
    x: Operand,
    w: Operand,
    of_gradient: Measure,
    rng: jax.Array | None = None,
    where: Any = None,
) -> jax.Array:
    """x · w, both of them in FP8 or neither; `rng` as in `fp8.product`."""
    return _forward(spec, x, w, of_gradient, rng, where)[0]


def _forward(spec: Spec, x: Operand, w: Operand, of_gradient, rng, where):
    with jax.named_scope(f"{spec.name}:output"):
        y = spec.products.output(x.values, w.values, where, spec.dtype)
        y = _scaled(y, x.scale, w.scale)
    kept = (x._replace(array=jnp.zeros((0,), x.array.dtype)),
            w._replace(array=jnp.zeros((0,), w.array.dtype)))  # fmt: skip
    return y, (*kept, of_gradient, rng, where)


def _backward(spec: Spec, residuals, g):
    x, w, of_gradient, rng, where = residuals
    scale = amax = None
    if spec.gradient_dtype is not None:
        with jax.named_scope(f"{spec.name}:gradient"):
            g, scale, amax = _quantized(g, spec.gradient_dtype, of_gradient, spec.axes, rng)
    with jax.named_scope(f"{spec.name}:d_input"):
        d_x = spec.products.d_input(g, w.values, where, x.array.dtype)
        d_x = _scaled(d_x, scale, w.scale)
    with jax.named_scope(f"{spec.name}:d_weight"):
        d_w = spec.products.d_weight(x.values, g, where, w.array.dtype)
        d_w = _scaled(d_w, x.scale, scale)
    return (
        Operand(d_x, None, None), Operand(d_w, None, None), Measure(None, amax), None, None
    )  # fmt: skip


multiply.defvjp(_forward, _backward)


def _scaled(y: jax.Array, a: jax.Array | None, b: jax.Array | None) -> jax.Array:
    """Powers of two, so nothing is rounded."""
    if a is None or b is None:
        return y
    return y * (a * b).astype(y.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def for_each_device(probe: jax.Array, num_devices: int) -> jax.Array:
    """A probe for each device of a shard_map, whose largest measure is the tensor's."""
    return jnp.broadcast_to(probe[None], (num_devices, *probe.shape))


def _for_each_forward(probe, num_devices):
    return for_each_device(probe, num_devices), None


def _for_each_backward(num_devices, _, seen):
    del num_devices
    return (jnp.max(seen, axis=0),)


for_each_device.defvjp(_for_each_forward, _for_each_backward)
