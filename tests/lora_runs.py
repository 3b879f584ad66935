"""LoRA runs on a model's directory, as they leave their workdir, without training."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import config as config_lib
from jaxtrain import config_program, stored_weights
from jaxtrain.hub.model import HubModel
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.run_config import RunConfig
from jaxtrain.starting_point import StartingPoint
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints

STEP = 4
#: Compiling costs more than anything else here; what is computed stays the same.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


def lora_config(base: str | pathlib.Path, model: HubModel, **lora: Any) -> RunConfig:
    """A run of rank 2 on `base` (a model's directory, or a workdir), which holds `model`."""
    c: Any = config_lib.to_config_dict(RunConfig)
    for field in dataclasses.fields(model.config):
        c.model[field.name] = getattr(model.config, field.name)
    c.precision.recipe = "float32"
    c.loop.num_steps = 1
    c.init["from"], c.init.load = str(base), "params"
    for name, value in {"rank": 2, "alpha": 6.0, **lora}.items():
        c.lora[name] = value
    return config_lib.resolve(RunConfig, c)


def make_program(config: RunConfig):
    """On one device."""
    return config_program.make_program(
        config, cross_entropy(config.loss), make_mesh(MeshConfig(), jax.devices()[:1])
    )


def save_run(workdir: pathlib.Path, config: RunConfig):
    """A checkpoint of random updates, B as large as A; returns (program, params, frozen)."""
    program = make_program(config)
    stored = stored_weights.named(str(config.init.from_))
    start = StartingPoint("", weights=stored_weights.fitting(stored, config.model))
    frozen = start.load_frozen(program)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(0.3 * rng.standard_normal(leaf.shape), "float32"),
        program.abstract_state.params,
    )
    metadata = {
        "config": config_lib.to_plain(config),
        "data": {},
        "metrics": {},
        **start.record_frozen(frozen),
    }
    with Checkpoints(workdir / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(STEP, {"params": params}, metadata)
    stored_weights.keep_origin(start.weights, workdir)
    return program, params, frozen


def save_whole(workdir: pathlib.Path, config: RunConfig, params: Any = None) -> None:
    """A checkpoint of a run that trains everything, which is zeros unless given."""
    metadata = {"config": config_lib.to_plain(config), "data": {}, "metrics": {}}
    shapes = make_program(config).model.params
    if params is None:
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    with Checkpoints(workdir / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(STEP, {"params": params}, metadata)


def logits(program, params, frozen, ids, positions) -> np.ndarray:
    """Of the model that is trained, its updates beside its frozen weights."""
    bind = program.parametrize(program.model).bind
    return np.asarray(quick_jit(lambda p, f: bind(p, {}, f)(ids, positions))(params, frozen))
