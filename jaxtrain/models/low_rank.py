"""`LowRank`: a frozen weight and a trained update of low rank, in the place of the weight's array.

    x · (W + scale · A·B)  =  x·W + scale · (x·A)·B          Hu et al. 2021, arXiv 2106.09685

`layers.project` takes the right-hand side: W + scale·A·B is not formed, nothing of W's size is a
gradient, and an update smaller than the spacing of bfloat16 numbers around W is not lost. What
knows weights only as arrays gets the sum from `astype`.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxtrain.precision.quantized_weight import QuantizedWeight


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRank:
    """W + scale · A·B; leading dimensions that all three share stack independent matrices."""

    base: jax.Array | QuantizedWeight  # [*stacked, *inputs, *outputs]
    a: jax.Array  # [*stacked, *inputs, rank]
    b: jax.Array  # [*stacked, rank, *outputs]
    scale: float = dataclasses.field(metadata={"static": True})

    def __getitem__(self, index: object) -> "LowRank":
        """Itself: `variable[...]` of a model's code asks for the whole value."""
        if index is not ...:
            raise ValueError(f"a weight with a low-rank update is used whole, not at {index}.")
        return self

    def astype(self, dtype: DTypeLike) -> jax.Array:
        """The sum as an array; added up in float32."""
        num_stacked = self.a.ndim + self.b.ndim - 2 - self.base.ndim
        stacked = tuple(range(num_stacked))
        product = jax.lax.dot_general(
            self.a,
            self.b,
            (((self.a.ndim - 1,), (num_stacked,)), (stacked, stacked)),
            precision=jax.lax.Precision.HIGHEST,
        )
        return (self.base.astype(jnp.float32) + self.scale * product).astype(dtype)
