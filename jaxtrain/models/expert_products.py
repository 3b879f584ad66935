"""How rows of experts lie where they are multiplied, and what multiplies (`operands.Products`).

Placed      [expert, place, D]: as many rows for each expert; a batched matmul of XLA's, which
            in FP8 is cuBLAS's
InBlocks    [block, row, D] with an expert for each block (`grouped.py`): on NVIDIA GPUs
            `kernels.grouped_matmul`, elsewhere one block after the other
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jaxtrain.kernels import grouped_matmul
from jaxtrain.models import grouped


@dataclasses.dataclass(frozen=True)
class Placed:
    """Rows [expert, place, inputs]."""

    def output(self, x: jax.Array, w: jax.Array, where: Any, dtype: DTypeLike) -> jax.Array:
        """x_ECD · w_EDF."""
        return _batched(x, w, (2, 1), dtype)

    def d_input(self, g: jax.Array, w: jax.Array, where: Any, dtype: DTypeLike) -> jax.Array:
        """g_ECF · w_EDF over F."""
        return _batched(g, w, (2, 2), dtype)

    def d_weight(self, x: jax.Array, g: jax.Array, where: Any, dtype: DTypeLike) -> jax.Array:
        """x_ECD · g_ECF over C."""
        return _batched(x, g, (1, 1), dtype)


def _batched(a: jax.Array, b: jax.Array, axes: tuple[int, int], dtype: DTypeLike) -> jax.Array:
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    over = (((axes[0],), (axes[1],)), ((0,), (0,)))
    return lax.dot_general(a, b, over, precision, preferred_element_type=dtype)


@dataclasses.dataclass(frozen=True)
class InBlocks:
    """Rows [block, row, inputs]; `where` is their `grouped.Layout`."""

    kernel: grouped_matmul.Spec | None  # None: one block after the other
    num_experts: int  # of this device

    def output(
        self, x: jax.Array, w: jax.Array, where: grouped.Layout, dtype: DTypeLike
    ) -> jax.Array:
        """Each block times its expert's matrix."""
        if self.kernel is None:
            return grouped.product(x, w, where, dtype)
        x, w = self._taken(x, w)
        return grouped_matmul.product(self.kernel, x, w, where.expert, where.num_used, dtype)

    def d_input(
        self, g: jax.Array, w: jax.Array, where: grouped.Layout, dtype: DTypeLike
    ) -> jax.Array:
        """Each block of gradients times its expert's matrix, transposed."""
        if self.kernel is None:
            return grouped.product(g, w.swapaxes(1, 2), where, dtype)
        g, w = self._taken(g, w)
        return grouped_matmul.product(
            self.kernel, g, w, where.expert, where.num_used, dtype, transposed=True
        )

    def d_weight(
        self, x: jax.Array, g: jax.Array, where: grouped.Layout, dtype: DTypeLike
    ) -> jax.Array:
        """The gradient of each expert's matrix."""
        if self.kernel is None:
            return grouped.of_matrices(x, g, self.num_experts, where, dtype)
        x, g = self._taken(x, g)
        return grouped_matmul.of_matrices(
            self.kernel, x, g, self.num_experts, where.expert, where.num_used, dtype
        )

    def _taken(self, *values: jax.Array) -> tuple[jax.Array, ...]:
        """FP8 where the device has it; emulated, in bfloat16, which holds FP8's numbers exactly."""
        assert self.kernel is not None
        if values[0].dtype.itemsize > 1 or self.kernel.has_fp8:
            return values
        return tuple(each.astype(jnp.bfloat16) for each in values)
