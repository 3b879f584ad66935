"""Which dimension letter lies on which mesh axis: the tables, and the shardings made from them.

Parameters are looked up letter by letter ("DNH"); activations by their whole signature, because
one letter can lie elsewhere in different arrays: the residual stream "BTD" is split along T over
`tensor` (Megatron sequence parallelism) while in "BTNH" the heads are.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtrain.parallel.mesh import BATCH_AXES
from jaxtrain.types import LEGEND, Array

Axes = str | tuple[str, ...] | None

_TENSOR: Mapping[str, Axes] = {
    "N": "tensor",
    "K": "tensor",
    "F": "tensor",
    "V": "tensor",
    "E": "expert",
}
_ZERO = {**_TENSOR, "D": "fsdp"}
_ZERO_OVER_DATA = {**_TENSOR, "D": ("data", "fsdp")}


@dataclasses.dataclass(frozen=True)
class Table:
    """Letter -> mesh axes for parameters, gradients and optimizer state. Missing letter: whole."""

    params: Mapping[str, Axes]
    grads: Mapping[str, Axes]
    opt_state: Mapping[str, Axes]


#: ZeRO stages (Rajbhandari et al. 2020, arXiv 1910.02054) as tables.
TABLES: Mapping[str, Table] = {
    "zero1": Table(params=_TENSOR, grads=_TENSOR, opt_state=_ZERO_OVER_DATA),
    "zero2": Table(params=_TENSOR, grads=_ZERO, opt_state=_ZERO),
    "zero3": Table(params=_ZERO, grads=_ZERO, opt_state=_ZERO),
}

#: Activations by signature. The batch lies on data, fsdp and expert everywhere.
ACTIVATIONS: Mapping[str, PartitionSpec] = {
    "BT": PartitionSpec(BATCH_AXES, "context"),
    "BTD": PartitionSpec(BATCH_AXES, ("context", "tensor"), None),
    "BTF": PartitionSpec(BATCH_AXES, "context", "tensor"),
    "BTEF": PartitionSpec(BATCH_AXES, "context", None, "tensor"),
    "BTV": PartitionSpec(BATCH_AXES, "context", "tensor"),
    "BTNH": PartitionSpec(BATCH_AXES, "context", "tensor", None),
    "BTKH": PartitionSpec(BATCH_AXES, "context", "tensor", None),
    "BKSH": PartitionSpec(BATCH_AXES, "tensor", "context", None),  # keys and values in a cache
    "DV": PartitionSpec(None, "tensor"),  # the head while it multiplies: gathered over fsdp
}


def partition_spec(letters: str, table: Mapping[str, Axes]) -> PartitionSpec:
    """The spec of an array with these dimension letters.

    Raises:
      ValueError: for a letter outside the legend, or two letters on one mesh axis.
    """
    used: dict[str, str] = {}
    for letter in letters:
        if letter not in LEGEND:
            raise ValueError(f"axes={letters!r}: {letter!r} is not a dimension in types.LEGEND.")
        for axis in _names(table.get(letter)):
            if axis in used:
                raise ValueError(
                    f"axes={letters!r}: {used[axis]} and {letter} both lie on mesh axis {axis!r}."
                )
            used[axis] = letter
    return PartitionSpec(*(table.get(letter) for letter in letters))


def named_shardings(axes: Any, table: Mapping[str, Axes], mesh: Mesh) -> Any:
    """`NamedSharding`s for a tree of letter strings ("" = the same on every device)."""
    return jax.tree.map(lambda letters: NamedSharding(mesh, partition_spec(letters, table)), axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """How every array of a batch is split: rows over the batch axes."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


@dataclasses.dataclass(frozen=True)
class Constrain:
    """`constrain(x_BTD, "BTD")` inside a jitted model: pins an activation to the mesh."""

    mesh: Mesh

    def __call__(self, x: Array, letters: str) -> Array:
        """`x` with the sharding of its signature.

        Raises:
          ValueError: for a signature that `ACTIVATIONS` does not list.
        """
        if letters not in ACTIVATIONS:
            raise ValueError(f"activation {letters!r} is not in parallel.sharding.ACTIVATIONS.")
        if self.mesh.size == 1:
            return x
        spec = fitting(ACTIVATIONS[letters], x.shape, self.mesh)
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


def fitting(spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """`spec` without the axes that do not divide their dimension (a row of 1 token, say)."""
    parts = []
    for size, entry in zip(shape, spec, strict=True):
        ways = 1
        for axis in _names(entry):
            ways *= mesh.shape[axis]
        parts.append(entry if size % ways == 0 else None)
    return PartitionSpec(*parts)


def check_divides(axes: Any, shapes: Any, table: Mapping[str, Axes], mesh: Mesh) -> None:
    """Raises a ValueError naming the first parameter that its mesh axes do not divide."""
    leaves = jax.tree_util.tree_leaves_with_path(axes)
    for (path, letters), leaf in zip(leaves, jax.tree.leaves(shapes), strict=True):
        for letter, size in zip(letters, leaf.shape, strict=True):
            axes_of_letter = _names(table.get(letter))
            ways = math.prod(mesh.shape[axis] for axis in axes_of_letter)
            if size % ways:
                name = "/".join(str(getattr(key, "key", key)) for key in path)
                sizes = (f"config.mesh.{axis}={mesh.shape[axis]}" for axis in axes_of_letter)
                dimension = LEGEND[letter].split(";")[0]  # of a parameter
                raise ValueError(
                    f"{' × '.join(sizes)} must divide {dimension} "
                    f"({letter}={size}) of parameter {name} ({letters})."
                )


def _names(entry: Axes) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
