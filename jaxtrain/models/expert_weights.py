"""`ExpertWeight`: a matrix for each expert, and rows times the matrix of their expert.

    w = prepare(weight, …)                       where tensors are whole: outside of a shard_map
    x = prepare_input(recipe, x, w_gate, w_up)   likewise, ahead of the dispatch: once for both
    y = w.times(x, products, where, axes)        where the experts are

The number format of routed experts is known here alone, and how their rows lie in `products` alone.
Under "fp8" weights and tokens are cast before they cross the wire. Under `tiled.FORMATS` an expert
cuts what it has into tiles, so their edges, and with them roundings, follow the mesh.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

from jaxtrain.models.low_rank import LowRank
from jaxtrain.precision import fp8, operands, tiled
from jaxtrain.precision.operands import Measure, Operand, Products
from jaxtrain.precision.quantization import SCALINGS, TENSORS, Quantization
from jaxtrain.precision.quantized_weight import QuantizedWeight
from jaxtrain.precision.recipe import Recipe

_INPUT, _WEIGHT, _GRADIENT = range(len(TENSORS))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ExpertWeight:
    """Matrices [expert, inputs, outputs], or specs of all; rest as of `QuantizedWeight`."""

    matrices: Operand
    history: Any
    probe: Any  # [device, tensor]; inside of a shard_map, of one device
    rng: Any
    recipe: Recipe = dataclasses.field(metadata={"static": True})
    how: Quantization | None = dataclasses.field(metadata={"static": True})
    name: str = dataclasses.field(metadata={"static": True})

    @property
    def is_fp8(self) -> bool:
        """Whether all operands have one scale for the tensor."""
        return self.matrices.scale is not None

    @property
    def num_experts(self) -> int:
        """Those that are here."""
        return len(self.matrices.values)

    def specs(self, of_matrices: PartitionSpec, axes: tuple[str, ...]) -> Any:
        """How a shard_map over `axes` splits it."""
        by_dims = {3: of_matrices, 2: PartitionSpec(axes)}
        specs = jax.tree.map(lambda leaf: by_dims.get(leaf.ndim, PartitionSpec()), self)
        return dataclasses.replace(specs, history=PartitionSpec())

    def times(
        self, x: jax.Array | Operand, products: Products, where: Any, axes: tuple[str, ...]
    ) -> jax.Array:
        """Rows times the matrix of their expert.

        Args:
          x: in the compute dtype, or in FP8, of which one that is not in FP8 takes no notice.
          axes: inside of a shard_map, its axes.
        """
        recipe, how, rng = self.recipe, self.how, self.rng
        if rng is not None and axes:  # each device has rows of its own
            rng = jax.random.fold_in(rng, lax.axis_index(axes))
        rows = x.array if isinstance(x, Operand) else x
        spec = operands.Spec(products, recipe.compute_dtype, None, self.name, axes)
        if how is None:
            x = _as_it_is(rows, recipe.compute_dtype, recipe.compute_dtype)
            return operands.multiply(spec, x, self.matrices, Measure(None, None), None, where)
        if not self.is_fp8:
            return self._in_tiles(how, rows, rng)
        if not isinstance(x, Operand):
            x = operands.in_e4m3(rows, self._measure(_INPUT), axes)
        spec = spec._replace(gradient_dtype=how.gradient_dtype)
        return operands.multiply(spec, x, self.matrices, self._measure(_GRADIENT), rng, where)

    def _in_tiles(self, how: Quantization, x: jax.Array, rng: jax.Array | None) -> jax.Array:
        """One expert after the other; x is [expert, row, inputs]."""
        grad_dtype, name = self.recipe.grad_reduce_dtype, matrix_name(self.name)
        spec = tiled.Spec(how.scaling, 1, how.emulate, grad_dtype, name)
        rngs = None if rng is None else jax.random.split(rng, len(x))
        return lax.map(lambda each: tiled.product(spec, *each), (x, self.matrices.array, rngs))

    def _measure(self, tensor: int) -> Measure:
        probe = None if self.probe is None else self.probe[0]
        return fp8.measures(self.history, probe)[tensor]


def prepare(
    weight: jax.Array | LowRank | QuantizedWeight, recipe: Recipe, num_devices: int
) -> ExpertWeight:
    """A weight of a model on its way to the experts.

    Args:
      num_devices: of the shard_map that it goes into.
    """
    dtypes = recipe.compute_dtype, recipe.grad_reduce_dtype
    if not isinstance(weight, QuantizedWeight):
        matrices = _as_it_is(weight, *dtypes)
        return ExpertWeight(matrices, None, None, None, recipe, None, "experts")
    how, history, probe = weight.how, weight.history, weight.probe
    if how.scaling in tiled.FORMATS:
        matrices = _as_it_is(weight, *dtypes)
    else:
        matrices = operands.in_e4m3(weight.array, _measure_of(weight, _WEIGHT), (), *dtypes)
    probe = None if probe is None else operands.for_each_device(probe, num_devices)
    return ExpertWeight(matrices, history, probe, weight.rng, recipe, how, weight.name)


def prepare_input(
    x: jax.Array, recipe: Recipe, weights: Sequence[jax.Array | LowRank | QuantizedWeight]
) -> jax.Array | Operand:
    """Tokens that several weights multiply, cast once for all of these that are in FP8.

    Each of them measures the same tensor and has the same history of it.
    """
    x = x.astype(recipe.compute_dtype)
    in_fp8 = [w for w in weights if isinstance(w, QuantizedWeight) and w.how.scaling in SCALINGS]
    if not in_fp8:
        return x
    history, probe = _measure_of(in_fp8[0], _INPUT)
    for w in in_fp8[1:] if probe is not None else ():
        probe += _measure_of(w, _INPUT).probe  # the gradient of a sum goes to each of its terms
    return operands.in_e4m3(x, Measure(history, probe))


def matrix_name(name: str) -> str:
    """What one expert's matrix is called: "ffn.w_up_DF" of "ffn.w_up_EDF"."""
    path, _, letters = name.rpartition("_")
    return f"{path}_{letters.removeprefix('E')}"


def _as_it_is(w: Any, dtype: type, grad_dtype: type) -> Operand:
    """Of anything that `astype` makes an array of."""
    return Operand(w.astype(grad_dtype), lax.stop_gradient(w.astype(dtype)), None)


def _measure_of(weight: QuantizedWeight, tensor: int) -> Measure:
    return fp8.measures(weight.history, weight.probe)[tensor]
