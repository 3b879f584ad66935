"""Frozen models that a stage's loss sees beside the trained one: where they are, how they are held.

A launcher names them (`Companion`); where each one's weights lie is decided with the run's starting
point, and the program holds them as `FrozenModel`s.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from jaxtrain.lora.adapters import BASE
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.run_config import RunConfig
from jaxtrain.starting_point import StartingPoint
from jaxtrain.train.frozen import FrozenModel

#: (shape, recipe) -> a function of a key that makes the model on the run's mesh
MakerOf = Callable[[ModelConfig, str], Callable[[jax.Array], Decoder]]


class Companion(NamedTuple):
    """A frozen model by name of what a config says of it."""

    where: str | None = None  # as config.init.from; None: the model that the run starts from
    recipe: str | None = None  # of precision; None: the run's
    sharding: str | None = None  # a key of parallel.sharding.TABLES; None: the run's


def wheres(config: RunConfig, companions: Mapping[str, Companion]) -> dict[str, str | None]:
    """Where the trees are that have to be loaded for them, by name: not LoRA's base once more."""
    return {name: each.where for name, each in companions.items() if not _is_base(config, each)}


def frozen_models(
    config: RunConfig,
    companions: Mapping[str, Companion],
    start: StartingPoint,
    maker_of: MakerOf,
) -> dict[str, FrozenModel]:
    """The models by name, as a program takes them.

    Raises:
      ValueError: where one of them is no language model.
    """
    models = {}
    for name, each in companions.items():
        is_base = _is_base(config, each)
        recipe = each.recipe or config.precision.recipe
        shape = config.model if is_base else start.others[name].config
        if shape.scalar_head:
            raise ValueError(
                f"config.{name}.from: {start.others[name].where} is a reward model, which predicts "
                "no tokens; name a language model"
            )
        models[name] = FrozenModel(
            tree=BASE if is_base else name,
            config=shape,
            make_model=maker_of(shape, recipe),
            dtype=get_recipe(recipe).compute_dtype,
            sharding=each.sharding or config.mesh.sharding,
        )
    return models


def describe(models: Mapping[str, FrozenModel], start: StartingPoint) -> dict[str, str]:
    """A line on each for the start-up report."""
    lines = {}
    for name, each in models.items():
        num = sum(leaf.size for leaf in jax.tree.leaves(each.model.params))
        what = f"{num:,} parameters, frozen"
        if each.tree == BASE:
            lines[name] = f"{what}: the model below the low-rank updates"
        else:
            held = np.dtype(each.dtype).name
            lines[name] = f"{what}, held in {held} as {each.sharding}: {start.others[name].where}"
    return lines


def _is_base(config: RunConfig, companion: Companion) -> bool:
    return companion.where is None and config.lora.rank is not None
