"""From a config to the program of a run: model, loss, optimizer and mesh put together.

Nothing is allocated or compiled here. What the config asks for and the devices cannot do, or what
does not fit together, is an error that names the section.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from jaxtrain.lora.adapters import adapt
from jaxtrain.models import dispatch, low_precision
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder, attention_choice
from jaxtrain.models.flops import adapted_flops_per_token, train_flops_per_token
from jaxtrain.models.parameters import flatten, whole
from jaxtrain.optim.build import build as build_optimizer
from jaxtrain.parallel.sharding import Constrain
from jaxtrain.precision.recipe import Recipe, check_devices, get_recipe, training_recipe
from jaxtrain.run_config import RunConfig
from jaxtrain.train.frozen import FrozenModel
from jaxtrain.train.program import Program
from jaxtrain.types import Array, Loss

MFU_FORMULA = (
    "MFU = tokens/s × model FLOPs per token / peak; model FLOPs = 6 × matmul weights (4 × frozen "
    "ones, 2 × those of a model beside it; head counted, embedding look-up not) + 12 × L × N × H × "
    "T × (½ if causal, less in a window); recomputation not counted"
)


def model_maker(
    config: RunConfig,
    constrain: Callable[[Array, str], Array] = lambda x, _: x,
    platform: str | None = None,
    shape: ModelConfig | None = None,
    recipe: Recipe | None = None,
) -> Callable[[Array], Decoder]:
    """A function of a key that makes the config's model; `platform` as in `make_program`.

    Args:
      shape: of another model that is to run on the same batches.
      recipe: None: as the config's model computes where it is not trained.
    """
    return lambda rng: Decoder(
        shape or config.model,
        rngs=nnx.Rngs(rng),
        recipe=recipe or get_recipe(config.precision.recipe),
        constrain=constrain,
        isolated=config.isolated,
        platform=platform,
    )


def choose_attention(config: RunConfig, platform: str | None = None) -> tuple[str, str]:
    """(implementation, reason) of the attention that will run."""
    recipe, where = get_recipe(config.precision.recipe), platform or jax.default_backend()
    try:
        return attention_choice(config.model, recipe, where, isolated=config.isolated)
    except ValueError as error:
        raise ValueError(f"config.model.{error}") from error


def choose_dispatch(config: RunConfig, platform: str | None = None) -> tuple[str, str]:
    """(way, reason) in which tokens will reach their experts."""
    try:
        return dispatch.choice(config.model, platform or jax.default_backend())
    except ValueError as error:
        raise ValueError(f"config.model.{error}") from error


def make_program(
    config: RunConfig,
    loss: Loss,
    mesh: Mesh,
    start_count: int = 0,
    platform: str | None = None,
    others: Mapping[str, FrozenModel] | None = None,
) -> Program:
    """The program of a config on a mesh; nothing is allocated.

    Args:
      start_count: updates at the checkpoint that the run branched from.
      others: frozen models that the loss sees, by name.
      platform: what the mesh's devices are ("cpu", "gpu"), where that is not this process's
        default backend: compiling ahead of time.

    Raises:
      ValueError: where the mesh does not divide a parameter or the batch, or the schedule does not
        fit the run.
    """
    choose_attention(config, platform)  # before anything is traced
    choose_dispatch(config, platform)
    try:
        check_devices(config.precision, list(mesh.devices.flat))
    except ValueError as error:
        raise ValueError(f"config.precision.{error}") from error
    recipe = training_recipe(config.precision, mesh)
    tokens_per_step = config.data.positions_per_step()

    def make_optimizer(axes: Any):
        try:
            return build_optimizer(
                config.optim, config.loop.num_steps, axes, tokens_per_step, start_count
            )
        except ValueError as error:
            raise ValueError(f"config.optim.{error}") from error

    program = Program(
        make_model=model_maker(config, Constrain(mesh), platform, recipe=recipe),
        loss=loss,
        make_optimizer=make_optimizer,
        mesh=mesh,
        sharding=config.mesh.sharding,
        num_microbatches=config.loop.num_microbatches,
        scales_loss=recipe.scales_loss,
        seed=config.loop.seed,
        parametrize=whole if config.lora.rank is None else functools.partial(adapt, config.lora),
        others=others or {},
    )
    program.check()
    if recipe.quantization is not None:
        try:
            axes = flatten(program.model.axes)
            trained = flatten(program.abstract_state.params)
            adapted = [path.removesuffix(".a") for path in trained if path.endswith(".a")]
            low_precision.check(recipe.quantization, config.model, axes, adapted)
        except ValueError as error:
            raise ValueError(f"config.precision.{error}") from error
    return program


def flops_per_token(config: RunConfig, program: Program) -> float:
    """The model FLOPs of an MFU."""
    length = config.data.seq_len
    others = sum(
        train_flops_per_token(dataclasses.replace(other.config, num_mtp_layers=0), length) / 3
        for other in program.others.values()
    )
    if config.lora.rank is None:
        return train_flops_per_token(config.model, length) + others
    num_trained = sum(leaf.size for leaf in jax.tree.leaves(program.abstract_state.params))
    return adapted_flops_per_token(config.model, length, num_trained) + others
