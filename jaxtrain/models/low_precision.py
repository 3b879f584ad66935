"""Puts quantised weights into a block in the place of its arrays, where a layer's turn comes.

Quantised are the matrices that `layers.project` multiplies by, and those of routed experts. Norms,
biases, the router and attention scores have no such product; embedding, head and what predicts
further tokens lie outside the blocks. These stay as the recipe has them without quantisation. So do
routed experts that are `dropless` under a format of tiles, for which there is no kernel.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtrain.models.config import ModelConfig
from jaxtrain.models.low_rank import LowRank
from jaxtrain.precision.quantization import SCALINGS, DelayedScaling, Quantization
from jaxtrain.precision.quantized_weight import QuantizedWeight
from jaxtrain.precision.recipe import Recipe

#: A block's own name of the histories that it keeps under delayed scaling.
SCALING = "scaling"
#: What tells the key of a layer's rounding from those of its dropout, which are numbered from 0.
_ROUNDING = 0x0C0DE


def weight_names(block: nnx.Module, how: Quantization, config: ModelConfig) -> tuple[str, ...]:
    """The dotted names of a block's matrices that can be quantised, in order."""
    flat = nnx.to_flat_state(nnx.state(block, nnx.Param))
    return _quantisable((".".join(map(str, path)) for path, _ in flat), how, config)


def check(
    how: Quantization,
    config: ModelConfig,
    axes: Mapping[str, str],
    adapted: Collection[str] = (),
) -> None:
    """Raises a ValueError where a pattern fits no weight, or nothing is left to quantise.

    Args:
      axes: dimension letters of the model's parameters by dotted path.
      adapted: paths of those that have low-rank updates. A product of rows, by expert, with such a
        pair is not there, and added to a weight in FP8 an update would be rounded away.
    """
    layers = _names_of_layers(how, config, axes)
    how.check(layers)
    quantised = {
        name
        for layer, names in enumerate(layers)
        for name in how.weights(names, layer, config.num_layers)
        if is_routed(name)
    }
    if any(path.partition(".")[2] in quantised for path in adapted):
        raise ValueError(
            "exclude must hold '*.ffn.w_*_E*': low-rank updates of routed experts need these in "
            "bfloat16; or leave experts out of config.lora.targets."
        )


def describe(recipe: Recipe, config: ModelConfig, axes: Mapping[str, str]) -> str:
    """What of a model is computed in which format, in one line; `axes` as in `check`."""
    how = recipe.quantization
    if how is None:
        return f"weight matmuls in {recipe.name}"
    layers = _names_of_layers(how, config, axes)
    num_quantized = sum(
        len(how.weights(names, layer, config.num_layers)) for layer, names in enumerate(layers)
    )
    emulated = ", emulated where devices lack it" if how.emulate else ""
    return (
        f"{recipe.name} ({how.scaling} scaling{emulated}) for {num_quantized} of "
        f"{sum(map(len, layers))} matrices of the blocks; {jnp.dtype(recipe.compute_dtype).name} "
        f"for {', '.join(how.exclude) or 'none of them'}, and always for {_left_out(how, config)}; "
        "float32 for norms and router"
    )


def _left_out(how: Quantization, config: ModelConfig) -> str:
    if config.num_experts is None or _has_expert_products(how, config):
        return "embedding and head"
    return f"embedding, head and routed experts (dropless, which has no kernel for {how.scaling})"


def _names_of_layers(
    how: Quantization, config: ModelConfig, axes: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """The names of each layer's matrices that can be quantised."""
    found = []
    for stack, layers in config.block_stacks.items():
        inside = [path for path in axes if path.startswith(f"{stack}.")]
        names = _quantisable((path.removeprefix(f"{stack}.") for path in inside), how, config)
        found += [names] * len(layers)
    return found


def _quantisable(names: Iterable[str], how: Quantization, config: ModelConfig) -> tuple[str, ...]:
    """Those of a block's parameters that can be quantised, in order."""

    def can_be(name: str) -> bool:
        last = name.rpartition(".")[2]
        if not last.startswith("w_") or last.endswith("E"):  # what gives scores to experts
            return False
        return not is_routed(name) or _has_expert_products(how, config)

    return tuple(sorted(filter(can_be, names)))


def is_routed(name: str) -> bool:
    """Whether a weight, by its dotted name, has a matrix for each routed expert."""
    return name.rpartition(".")[2].rpartition("_")[2].startswith("E")


def _has_expert_products(how: Quantization, config: ModelConfig) -> bool:
    return how.scaling in SCALINGS or config.expert_dispatch != "dropless"


def add_scaling(block: nnx.Module, recipe: Recipe, config: ModelConfig) -> None:
    """Gives a block, its weights made, what the recipe's scaling remembers of updates."""
    how = recipe.quantization
    if how is not None and how.scaling == "delayed":
        setattr(block, SCALING, DelayedScaling(len(weight_names(block, how, config))))


class Part(NamedTuple):
    """Neighbouring layers of a stack whose weights are treated alike."""

    layers: range
    #: Of the state of one layer and its key of this step, if any.
    quantize: Callable[[nnx.State, jax.Array | None], nnx.State]


def parts(recipe: Recipe, stack: nnx.Module, layers: range, config: ModelConfig) -> list[Part]:
    """The layers of a stack, cut where other weights are quantised."""
    how = recipe.quantization
    if how is None:
        return [Part(layers, lambda state, rng: state)]
    names = weight_names(stack, how, config)
    return [
        Part(
            run.layers,
            functools.partial(with_quantized, weights=run.weights, names=names, how=how),
        )
        for run in how.parts(names, layers, config.num_layers)
    ]


def with_quantized(
    state: nnx.State,
    rng: jax.Array | None,
    weights: Collection[str],
    names: tuple[str, ...],
    how: Quantization,
) -> nnx.State:
    """One layer's state with these of its weights quantised.

    Args:
      rng: the layer's key of this step and microbatch; None where nothing is random: evaluation.
      names: all of the block's `weight_names`: rows of its histories.
    """
    flat = dict(nnx.to_flat_state(state))
    rounding_rng = None
    if how.rounds_gradients_stochastically and rng is not None:
        rounding_rng = jax.random.fold_in(rng, _ROUNDING)
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
            None if rounding_rng is None else jax.random.fold_in(rounding_rng, row),
        )
        if isinstance(value, LowRank):
            quantized = dataclasses.replace(value, base=quantized)
        flat[path] = variable.replace(quantized)
    return nnx.from_flat_state(flat.items())
