"""Models that take part in a loss and are not trained: a reference policy, a teacher.

Their parameters are arguments of the step, by the name of their tree, and no part of its state.
Matrices are held in the format that the model computes in, so that nothing is lost by it and the
memory is half; what is not a matrix stays float32, as in the model's own computation.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.typing import DTypeLike

from jaxtrain.lora.adapters import held_dtypes
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.parameters import Split, flatten, nest, split


@dataclasses.dataclass(frozen=True)
class FrozenModel:
    """`make_model(rng)` builds it; it is traced abstractly only, except for measuring."""

    tree: str  # the name of its parameters among the frozen trees; LoRA's base may be a reference
    config: ModelConfig
    make_model: Callable[[jax.Array], Any]
    dtype: DTypeLike  # of its matrices, as they are held
    sharding: str = "zero3"  # a key of parallel.sharding.TABLES

    @functools.cached_property
    def model(self) -> Split:
        """The model, abstract."""
        return split(jax.eval_shape(self.make_model, jax.random.key(0)))

    def bind(self, tree: Mapping[str, Any]) -> Any:
        """The model with these parameters, through which no gradient flows."""
        return self.model.bind(jax.lax.stop_gradient(tree), self.model.nontrained)

    def init(self, rng: jax.Array) -> dict[str, Any]:
        """Parameters of a model that was never trained, as they are held."""
        dtypes = held_dtypes(self.model.axes, self.dtype)
        params = flatten(split(self.make_model(rng)).params)
        return nest({path: leaf.astype(dtypes[path]) for path, leaf in params.items()})
