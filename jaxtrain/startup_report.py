"""What a training launcher says before it trains: what will run, on what, and from where.

The same lines go to the terminal and into the workdir's run.json.
"""

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from clu import parameter_overview

from jaxtrain import __version__
from jaxtrain.data.loader import Loader
from jaxtrain.lora import adapters
from jaxtrain.models import low_precision
from jaxtrain.models.flops import num_params
from jaxtrain.models.parameters import flatten
from jaxtrain.optim import groups
from jaxtrain.precision.recipe import training_recipe
from jaxtrain.run_config import RunConfig
from jaxtrain.train.program import Program


def describe(config: RunConfig, program: Program, source: Loader) -> dict[str, str]:
    """The lines that depend on the config alone."""
    return {
        "model": f"{num_params(config.model):,} parameters, {config.precision.recipe}",
        "precision": _precision(config, program),
        **_updates(config, program),
        "sharding": f"{config.mesh.sharding}, {config.loop.num_microbatches} microbatch(es)",
        "optimizer": program.optimizer.summary,
        "weight decay": groups.describe(
            program.abstract_state.params, program.axes, config.optim.weight_decay_groups
        ),
        "data": str(source.report(config.loop.num_steps)),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


def _precision(config: RunConfig, program: Program) -> str:
    recipe = training_recipe(config.precision)
    return low_precision.describe(recipe, config.model, flatten(program.model.axes))


def _updates(config: RunConfig, program: Program) -> dict[str, str]:
    if config.lora.rank is None:
        return {}
    return {"lora": adapters.describe(config.lora, program.model, program.abstract_state.params)}


def say(params: Any, report: Mapping[str, str], notes: Sequence[str]) -> None:
    """Prints the table of parameters, the report, and last what one may not expect."""
    print(parameter_overview.get_parameter_overview(params, include_stats=False))
    for name, text in report.items():
        print(f"{name}: {text}")
    for note in notes:
        print(f"note: {note}")
    sys.stdout.flush()


def versions() -> dict[str, str]:
    """Versions that decide what a run computes."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain")
    return {"jaxtrain": __version__, **{name: importlib.metadata.version(name) for name in names}}
