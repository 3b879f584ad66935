"""Puts quantised weights into a block in the place of its arrays, where a layer's turn comes.

Quantised are the matrices that `layers.project` multiplies by. Norms, biases, the router, attention
scores and routed experts have no such product; embedding, head and what predicts further tokens lie
outside the blocks. All of these stay as the recipe has them without quantisation.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx

from jaxtrain.models.config import ModelConfig
from jaxtrain.models.low_rank import LowRank
from jaxtrain.precision.quantization import DelayedScaling, Quantization
from jaxtrain.precision.quantized_weight import QuantizedWeight
from jaxtrain.precision.recipe import Recipe

#: A block's own name of the histories that it keeps under delayed scaling.
SCALING = "scaling"


def weight_names(block: nnx.Module) -> tuple[str, ...]:
    """The dotted names of a block's matrices that can be quantised, in order."""
    flat = nnx.to_flat_state(nnx.state(block, nnx.Param))
    letters = {".".join(map(str, path)): each.get_metadata("axes") for path, each in flat}
    return tuple(sorted(name for name in letters if _is_projected(name, letters[name])))


def check(how: Quantization, config: ModelConfig, axes: Mapping[str, str]) -> None:
    """Raises a ValueError where a pattern fits no weight, or nothing is left to quantise.

    Args:
      axes: dimension letters of the model's parameters by dotted path.
    """
    how.check(_names_of_layers(config, axes))


def describe(recipe: Recipe, config: ModelConfig, axes: Mapping[str, str]) -> str:
    """What of a model is computed in which format, in one line; `axes` as in `check`."""
    how = recipe.quantization
    if how is None:
        return f"weight matmuls in {recipe.name}"
    layers = _names_of_layers(config, axes)
    num_quantized = sum(
        len(how.weights(names, layer, config.num_layers)) for layer, names in enumerate(layers)
    )
    emulated = ", emulated where devices lack it" if how.emulate else ""
    return (
        f"{recipe.name} ({how.scaling} scaling{emulated}) for {num_quantized} of "
        f"{sum(map(len, layers))} matrices of the blocks; {jnp.dtype(recipe.compute_dtype).name} "
        f"for {', '.join(how.exclude) or 'none of them'}, and always for embedding, head and "
        "routed experts; float32 for norms and router"
    )


def _names_of_layers(config: ModelConfig, axes: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The names of each layer's matrices that can be quantised."""
    found = []
    for stack, layers in config.block_stacks.items():
        inside = {
            path.removeprefix(f"{stack}."): letters
            for path, letters in axes.items()
            if path.startswith(f"{stack}.")
        }
        names = sorted(name for name in inside if _is_projected(name, inside[name]))
        found += [tuple(names)] * len(layers)
    return found


def add_scaling(block: nnx.Module, recipe: Recipe) -> None:
    """Gives a block, its weights made, what the recipe's scaling remembers of updates."""
    how = recipe.quantization
    if how is not None and how.scaling == "delayed":
        setattr(block, SCALING, DelayedScaling(len(weight_names(block))))


class Part(NamedTuple):
    """Neighbouring layers of a stack whose weights are treated alike."""

    layers: range
    quantize: Callable[[nnx.State], nnx.State]  #: of the state of one layer


def parts(recipe: Recipe, stack: nnx.Module, layers: range, num_layers: int) -> list[Part]:
    """The layers of a stack, cut where other weights are quantised.

    Cutting copies the stacked weights: what leaves the first and the last layer out costs the
    memory of the others' float32 weights, sharded as they are.
    """
    how, names = recipe.quantization, weight_names(stack)
    if how is None:
        return [Part(layers, lambda state: state)]
    return [
        Part(
            run.layers,
            functools.partial(with_quantized, weights=run.weights, names=names, how=how),
        )
        for run in how.parts(names, layers, num_layers)
    ]


def with_quantized(
    state: nnx.State, weights: Collection[str], names: tuple[str, ...], how: Quantization
) -> nnx.State:
    """One layer's state with these of its weights quantised.

    Args:
      names: all of the block's `weight_names`: rows of its histories.
    """
    flat = dict(nnx.to_flat_state(state))
    history = probe = None
    if how.scaling == "delayed":
        history = flat[(SCALING, DelayedScaling.HISTORY)].get_value()
        probe = flat[(SCALING, DelayedScaling.AMAX)].get_value()
    for name in weights:
        path, row = tuple(name.split(".")), names.index(name)
        variable = flat[path]
        value: Any = variable.get_value()
        array: Any = value.base if isinstance(value, LowRank) else value
        quantized = QuantizedWeight(
            array,
            None if history is None else history[row],
            None if probe is None else probe[row],
            how,
            name,
        )
        if isinstance(value, LowRank):
            quantized = dataclasses.replace(value, base=quantized)
        flat[path] = variable.replace(quantized)
    return nnx.from_flat_state(flat.items())


def _is_projected(path: str, letters: str) -> bool:
    """Experts ("E") have products of their own, in `moe.py`."""
    return path.rpartition(".")[2].startswith("w_") and "E" not in letters
