"""Which weights of a model are multiplied in fewer bits, and how their scales are found.

A weight's name says its layer and its place there: "layers.3.attention.w_q_DNH", and the same from
the end, "layers.-9.attention.w_q_DNH". Patterns (`fnmatch`) exclude.
"""

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from jaxtrain.measured import LargestOfGradient, Measuring
from jaxtrain.precision.quantize import E5M2

SCALINGS = ("current", "delayed")
GRAD_ROUNDINGS = ("nearest", "stochastic")
#: Updates whose largest magnitude makes a delayed scale.
HISTORY_LEN = 16
#: What an amax history is kept of, for each weight.
TENSORS = ("input", "weight", "gradient")


@dataclasses.dataclass(frozen=True)
class Quantization:
    """How the products of a model's blocks are quantised in training."""

    scaling: str = "current"  #: one of SCALINGS, or of `tiled.FORMATS`
    exclude: tuple[str, ...] = ()
    emulate: bool = False
    gradient_dtype: type = E5M2  #: under one of SCALINGS
    rounds_gradients_stochastically: bool = False
    mesh: Mesh | None = None  #: that the model lies on; None: one device

    def weights(self, names: Sequence[str], layer: int, num_layers: int) -> frozenset[str]:
        """Those of a layer's weights that no pattern excludes."""
        return frozenset(
            name
            for name in names
            if not any(
                fnmatch.fnmatchcase(f"layers.{number}.{name}", pattern)
                for number in (layer, layer - num_layers)
                for pattern in self.exclude
            )
        )

    def check(self, names_of_layers: Sequence[Sequence[str]]) -> None:
        """Checks that each pattern fits a weight, and that some are left to quantise.

        Raises:
          ValueError: where one fits none, or together they fit all.
        """
        num_layers = len(names_of_layers)
        for pattern in self.exclude:
            one = dataclasses.replace(self, exclude=(pattern,))
            if all(
                one.weights(names, layer, num_layers) == frozenset(names)
                for layer, names in enumerate(names_of_layers)
            ):
                first, last = names_of_layers[0][0], names_of_layers[-1][-1]
                raise ValueError(
                    f"exclude: {pattern!r} fits none of the weights, which are layers.0.{first} "
                    f"to layers.{num_layers - 1}.{last}."
                )
        if not any(
            self.weights(names, layer, num_layers) for layer, names in enumerate(names_of_layers)
        ):
            raise ValueError(
                f"exclude={self.exclude} leaves none of the {num_layers} layers to quantise; "
                "exclude less, or set config.precision.recipe=bfloat16."
            )

    def parts(self, names: Sequence[str], layers: range, num_layers: int) -> list["Part"]:
        """`layers` in runs of neighbours that quantise the same weights."""
        parts: list[Part] = []
        for layer in layers:
            weights = self.weights(names, layer, num_layers)
            if parts and parts[-1].weights == weights:
                parts[-1] = Part(range(parts[-1].layers.start, layer + 1), weights)
            else:
                parts.append(Part(range(layer, layer + 1), weights))
        return parts


class Part(NamedTuple):
    """Neighbouring layers whose weights are treated alike."""

    layers: range
    weights: frozenset[str]  # the quantised ones


class AmaxHistory(nnx.Variable):
    """Largest magnitudes by weight, tensor and update, the latest first."""


class DelayedScaling(Measuring):
    """The amax histories of a block's weights.

    A history moves once per update, by the largest magnitude of all microbatches and devices; where
    an update is skipped it stays, so that nothing non-finite enters it.
    """

    HISTORY, AMAX = "history", "amax"  #: names of its variables

    def __init__(self, num_weights: int) -> None:
        shape = (num_weights, len(TENSORS))
        self.history = AmaxHistory(jnp.zeros((*shape, HISTORY_LEN), jnp.float32))
        self.amax = LargestOfGradient(None, extent=shape)

    def settle(self) -> None:
        """Takes in what the update has seen and forgets the oldest."""
        seen, history = self.amax.get_value(), self.history.get_value()
        self.history.set_value(jnp.concatenate([seen[..., None], history[..., :-1]], axis=-1))
