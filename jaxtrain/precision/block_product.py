"""The product of `fp8_block` by our kernel, on a mesh: each device multiplies what it has.

XLA cannot split a kernel, so where each dimension lies is said here, by the letters of the weight:

    tokens     over the axes that split the batch
    inputs     of the weight: on the axis of their first letter (`tensor` for heads and F), or whole
    outputs    likewise

Rows and columns of a product stay where they lie; terms that lie on an axis are summed over it, and
the sums of activations split along T (Megatron's sequence parallelism). Along fsdp weights are
whole in here: values in FP8 and scales are what is gathered.

Results do not depend on the mesh but for the order of sums, so tiles are those of one device: a
dimension that an axis would cut within a tile is gathered, and devices on that axis do the same
work. Tiles are whole where 128 divides each device's tokens, F and heads times their size.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxtrain.kernels import blocks
from jaxtrain.kernels.block_scaled_matmul import TILE, Spec, block_scaled_matmul
from jaxtrain.parallel.mesh import BATCH_AXES
from jaxtrain.parallel.sharding import TABLES
from jaxtrain.precision.quantize import Scaled

#: Where the letters of a weight lie that is whole along fsdp.
_LETTERS = TABLES["zero1"].params

MeshAxes = tuple[str, ...]


class Where(NamedTuple):
    """The mesh axes that split a product's [rows, columns] and the terms of its sums."""

    rows: MeshAxes
    columns: MeshAxes
    terms: MeshAxes
    batch: tuple[int, ...] = ()  #: (B, T) where rows are B times T, of which the mesh splits B


class Axes(NamedTuple):
    """The mesh axes that split each dimension of a weight's products; () where none does."""

    tokens: MeshAxes
    inputs: MeshAxes
    outputs: MeshAxes

    def output(self, batch: tuple[int, ...]) -> Where:
        """Of x · w, whose tokens are such a batch."""
        return Where(self.tokens, self.outputs, self.inputs, batch)

    def d_input(self, batch: tuple[int, ...]) -> Where:
        """Of g · wᵀ."""
        return Where(self.tokens, self.inputs, self.outputs, batch)

    def d_weight(self) -> Where:
        """Of xᵀ · g."""
        return Where(self.inputs, self.outputs, self.tokens)


def axes_of(name: str, num_contracted: int) -> Axes:
    """By the letters that a weight's name ends in, "attention.w_q_DNH"."""
    letters = name.rpartition("_")[2]
    first = (letters[:1], letters[num_contracted : num_contracted + 1])
    where = (_LETTERS.get(letter) for letter in first)
    inputs, outputs = ((axis,) if isinstance(axis, str) else axis or () for axis in where)
    return Axes(BATCH_AXES, inputs, outputs)


def matmul(mesh: Mesh | None, a: Scaled, b: Scaled, where: Where, dtype: DTypeLike) -> jax.Array:
    """Σ_k a[m, k] · b[n, k], dequantised, in `dtype`, which is also that of sums over devices.

    The result is [M, N], or [B, T, N] with T split by what split K.

    Args:
      mesh: that the operands lie on; None: one device.
      a: [M, K] with scales of 1 × 128.
      b: [N, K] with scales of 1 × 128 or 128 × 128; 128 divides K.
    """
    run = functools.partial(block_scaled_matmul, _kernel(mesh), dtype=dtype)
    if mesh is None or mesh.size == 1:
        return run(*a, *b)
    num_columns, (num_rows, num_terms) = len(b.values), a.values.shape
    rows = _splitting(mesh, where.rows, num_rows)
    columns = _splitting(mesh, where.columns, num_columns)
    terms = _splitting(mesh, where.terms, num_terms, TILE)
    if len(b.scale) != num_columns and columns != _splitting(mesh, columns, num_columns, TILE):
        b = Scaled(b.values, jnp.repeat(b.scale, TILE, axis=0)[:num_columns])
    length = where.batch[1] if _is_split_by_rows(mesh, where.batch, rows) else 1
    is_scattered = bool(terms) and length > 1 and terms == _splitting(mesh, terms, length)

    def local(*operands: jax.Array) -> jax.Array:
        y = run(*operands)
        if is_scattered:
            y = y.reshape(-1, length, y.shape[-1])
            return lax.psum_scatter(y, terms, scatter_dimension=1, tiled=True)
        return lax.psum(y, terms) if terms else y

    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(PartitionSpec(rows, terms),) * 2 + (PartitionSpec(columns, terms),) * 2,
        out_specs=PartitionSpec(*((rows, terms, columns) if is_scattered else (rows, columns))),
        check_vma=False,  # a kernel does not say over which axes its results vary
    )(*a, *b)


def pinned(mesh: Mesh | None, x: jax.Array, features: MeshAxes) -> jax.Array:
    """[token, feature] where products want it, ahead of casts that several of them share."""
    if mesh is None or mesh.size == 1:
        return x
    tokens = _splitting(mesh, BATCH_AXES, x.shape[0])
    where = PartitionSpec(tokens, _splitting(mesh, features, x.shape[1], TILE))
    return lax.with_sharding_constraint(x, NamedSharding(mesh, where))


def _is_split_by_rows(mesh: Mesh, batch: tuple[int, ...], rows: MeshAxes) -> bool:
    """Whether a device's rows are whole rows of the batch."""
    return len(batch) == 2 and rows == _splitting(mesh, rows, batch[0])


def _kernel(mesh: Mesh | None) -> Spec:
    """The kernel for the devices that will run."""
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    return Spec(blocks.block_scaled_matmul(device))


def _splitting(mesh: Mesh, axes: MeshAxes, size: int, tile: int = 1) -> MeshAxes:
    """Those of the axes that split anything, if they cut no tile; else ()."""
    axes = tuple(axis for axis in axes if mesh.shape[axis] > 1)
    return () if size % (tile * math.prod(mesh.shape[axis] for axis in axes)) else axes
