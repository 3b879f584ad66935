"""`QuantizedWeight`: a weight whose products are quantised, in the place of the weight's array.

As with `models.low_rank.LowRank`, `layers.project` calls it, and what knows weights only as arrays
gets the master weight from `astype`; that one is never in fewer bits.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxtrain.precision import fp8, tiled
from jaxtrain.precision.quantization import Quantization


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QuantizedWeight:
    """A master weight [*inputs, *outputs]; `history`, `probe` and `rng` as in `fp8.product`."""

    array: jax.Array
    history: jax.Array | None
    probe: jax.Array | None
    how: Quantization = dataclasses.field(metadata={"static": True})
    name: str = dataclasses.field(metadata={"static": True})  # for profiles and compiled programs
    rng: jax.Array | None = None

    def __getitem__(self, index: object) -> "QuantizedWeight":
        """Itself: `variable[...]` of a model's code asks for the whole value."""
        if index is not ...:
            raise ValueError(f"{self.name}: a quantised weight is used whole, not at {index}.")
        return self

    @property
    def ndim(self) -> int:
        """Dimensions of the array."""
        return self.array.ndim

    def astype(self, dtype: DTypeLike) -> jax.Array:
        """The master weight in another dtype."""
        return self.array.astype(dtype)

    def swapaxes(self, a: int, b: int) -> "QuantizedWeight":
        """Itself with two dimensions swapped."""
        return dataclasses.replace(self, array=self.array.swapaxes(a, b))

    def product(
        self, x: jax.Array, num_contracted: int, grad_reduce_dtype: type = jnp.float32
    ) -> jax.Array:
        """Contracts the last dimensions of x with the first of the weight; in the dtype of x."""
        how = self.how
        if how.scaling in tiled.FORMATS:
            spec = tiled.Spec(
                how.scaling, num_contracted, how.emulate, grad_reduce_dtype, self.name, how.mesh
            )
            return tiled.product(spec, x, self.array, self.rng)
        spec = fp8.Spec(num_contracted, how.gradient_dtype, grad_reduce_dtype, self.name)
        return fp8.product(spec, x, self.array, self.history, self.probe, self.rng)
