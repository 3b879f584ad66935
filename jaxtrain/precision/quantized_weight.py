"""`QuantizedWeight`: a weight whose products are quantised, in the place of the weight's array.

As with `models.low_rank.LowRank`, `layers.project` calls it, and what knows weights only as arrays
gets the master weight from `astype`; that one is never in fewer bits.
"""

import dataclasses

import jax
from jax.typing import DTypeLike

from jaxtrain.precision import fp8, tiled
from jaxtrain.precision.quantization import Quantization


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QuantizedWeight:
    """A master weight [*inputs, *outputs]; `history` and `probe` as in `fp8.product`."""

    array: jax.Array
    history: jax.Array | None
    probe: jax.Array | None
    how: Quantization = dataclasses.field(metadata={"static": True})
    name: str = dataclasses.field(metadata={"static": True})  # for profiles and compiled programs

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

    def product(self, x: jax.Array, num_contracted: int) -> jax.Array:
        """Contracts the last dimensions of x with the first of the weight; in the dtype of x."""
        w = self.array.astype(x.dtype)
        if self.how.scaling in tiled.FORMATS:
            spec = tiled.Spec(self.how.scaling, num_contracted, self.how.emulate, self.name)
            return tiled.product(spec, x, w)
        spec = fp8.Spec(num_contracted, self.how.gradient_dtype, self.name)
        return fp8.product(spec, x, w, self.history, self.probe)
