"""A launcher's program where its loop would begin: split otherwise, and compiled quickly."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from jaxtrain import config_program
from jaxtrain.models.parameters import flatten
from jaxtrain.optim.build import Optimizer
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import Constrain
from jaxtrain.run_config import RunConfig
from jaxtrain.train.loop import Loop
from jaxtrain.train.program import Program
from jaxtrain.train.state import TrainState

#: Compiling costs more than anything else here; what is computed stays the same.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


@dataclasses.dataclass
class Start:
    """A launcher at the point where its loop begins."""

    loop: Loop
    state: TrainState
    config: RunConfig
    workdir: pathlib.Path

    @property
    def program(self) -> Program:
        return self.loop.program

    @property
    def frozen(self) -> Mapping[str, Any]:
        return self.loop.frozen

    def batch(self, step: int = 0) -> Any:
        """A batch of the loop's source, on the host."""
        return next(iter(self.loop.source.iterate(step, step + 1, slice(None))))


def sgd(axes: Any) -> Optimizer:
    """Plain gradient descent at rate 1: the update is the gradient."""
    del axes
    return Optimizer(optax.sgd(1.0), lambda count: np.float32(1.0), "sgd")


def spread(
    start: Start,
    num_devices: int = 1,
    num_microbatches: int = 1,
    optimizer: Callable[[Any], Optimizer] = sgd,
    **mesh: int,
) -> Program:
    """A start's program on another mesh, by default with the gradient as its update."""
    config, program = start.config, start.program
    on = make_mesh(dataclasses.replace(MeshConfig(), **mesh), jax.devices()[:num_devices])
    others = {
        name: dataclasses.replace(
            other, make_model=config_program.model_maker(config, Constrain(on), None, other.config)
        )
        for name, other in program.others.items()
    }
    made = config_program.make_program(config, program.loss, on, others=others)
    return dataclasses.replace(made, make_optimizer=optimizer, num_microbatches=num_microbatches)


def quick_train_step(program: Program) -> Any:
    """The very step of a program, compiled quickly; donates the state."""
    train_step: Any = program.train_step
    return jax.jit(
        train_step.__wrapped__,
        donate_argnums=0,
        out_shardings=(program.state_shardings, None),
        compiler_options=QUICK,
    )


def quick_eval_step(program: Program) -> Any:
    """Likewise of the loss sums."""
    eval_step: Any = program.eval_step
    return jax.jit(eval_step.__wrapped__, compiler_options=QUICK)


class Steps:
    """Steps of a program that was made of a start's, from these parameters or the start's own."""

    def __init__(self, program: Program, start: Start, params: Any = None) -> None:
        self.program = program
        self.frozen = jax.tree.map(
            lambda leaf, like: jax.device_put(np.asarray(leaf), like.sharding),
            dict(start.frozen),
            dict(program.abstract_frozen),
        )
        params = jax.device_get(start.state.params if params is None else params)
        # Of every optimizer the state begins as zeros.
        zeros = jax.tree.map(
            lambda like: jax.device_put(np.zeros(like.shape, like.dtype), like.sharding),
            program.abstract_state,
        )
        self.state = zeros._replace(
            params=jax.device_put(params, program.state_shardings.params),
            rng=np.asarray(start.state.rng),
        )
        self._train_step = quick_train_step(program)

    def step(self, batch: Any) -> dict[str, float]:
        """One update; returns its metrics."""
        put = self.program.put(batch, len(jax.tree.leaves(batch)[0]))
        self.state, metrics = self._train_step(self.state, self.frozen, put)
        found = jax.device_get(metrics)
        del found["tokens"]  # in two words
        return {name: float(value) for name, value in found.items()}

    def sums(self, batch: Any) -> dict[str, float]:
        """Loss and metrics of a batch, their sums over its weights, without an update."""
        put = self.program.put(batch, len(jax.tree.leaves(batch)[0]))
        found = quick_eval_step(self.program)(self.state, self.frozen, put)
        metrics = {name: total for name, (total, _) in found.metric_sums.items()}
        sums = {"loss": found.loss_sum, "weight": found.weight_sum, **metrics}
        return {name: float(value) for name, value in jax.device_get(sums).items()}

    def gradients(self, batch: Any) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """(metrics, gradients by path) of a batch, read off one step of gradient descent."""
        before = flatten(jax.device_get(self.state.params))
        metrics = self.step(batch)
        after = flatten(jax.device_get(self.state.params))
        return metrics, {path: before[path].astype(np.float64) - x for path, x in after.items()}


def moved(params: Any, seed: int = 7, by: float = 0.05) -> Any:
    """Parameters off where they were, on the host: no longer the reference's."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) + by * rng.standard_normal(leaf.shape).astype(np.float32),
        params,
    )
