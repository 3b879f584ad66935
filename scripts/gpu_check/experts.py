"""A layer of experts on this device: dropless and capacity dispatch against dense."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gpu_check import differences, timing
from gpu_check.checks import Checks
from gpu_check.machine import Machine
from jaxtrain import measured
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.moe import ExpertFeedForward
from jaxtrain.models.parameters import read_measured, split
from jaxtrain.precision.recipe import get_recipe

_BOUND = 0.02  # bfloat16 rounds to 2^-9, several times in a row and in other orders
_WAYS = ("dense", "capacity", "dropless")


def run(machine: Machine, checks: Checks) -> dict[str, Any]:
    """Output and gradients of one layer of the plan's mixture by each way, and their times."""
    scale = machine.scale
    shape = (scale.rows, scale.length, scale.model["d_model"])
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.bfloat16)
    ways = {}
    for way in _WAYS:
        model = {**scale.model, **scale.experts, "num_layers": 1, "expert_dispatch": way}
        ways[way] = _pass(ModelConfig(**model))
    results = {way: each(x) for way, each in ways.items()}
    _compare(results, ways["dropless"](x), checks)
    config = {**scale.model, **scale.experts}
    figures: dict[str, Any] = {
        "chosen_of_all": config["num_experts_per_token"] / config["num_experts"],
        "capacity_dropped_frac": float(results["capacity"][2])
        / (scale.rows * scale.length * config["num_experts_per_token"]),
    }
    figures |= {f"{way}_ms": 1e3 * timing.seconds(each, (x,)) for way, each in ways.items()}
    if machine.is_dry:
        checks.leave_out("dropless experts are faster than dense ones")
        return figures
    ratio = figures["dropless_ms"] / figures["dense_ms"]
    checks.expect(
        "dropless experts are faster than dense ones", ratio < 1,
        f"{ratio:.3f} × the time at {figures['chosen_of_all']:.3f} of the arithmetic",
    )  # fmt: skip
    return figures


def _compare(results: dict[str, Any], again: Any, checks: Checks) -> None:
    for number, what in enumerate(("output", "gradients")):
        error = differences.overall_error(results["dropless"][number], results["dense"][number])
        checks.expect(
            f"{what} of dropless experts are those of dense ones",
            error <= _BOUND,
            f"{error:.1e} apart, at most {_BOUND:.1e}",
        )
    checks.expect(
        "dropless experts give the same bits twice",
        differences.same_bits(results["dropless"], again),
        "output and gradients, compared bit for bit",
    )
    dropped = float(results["dropless"][2])
    checks.expect("dropless experts drop nothing", dropped == 0, f"{dropped:.0f} assignments")


def _pass(config: ModelConfig) -> Callable:
    """A function of x: output, gradients of parameters and x, and how much was dropped."""
    recipe = get_recipe("bfloat16")

    def make() -> ExpertFeedForward:
        return ExpertFeedForward(
            config, rngs=nnx.Rngs(0), recipe=recipe, constrain=lambda x, letters: x
        )

    parts = split(nnx.eval_shape(make))
    params = jax.jit(lambda: split(make()).params)()

    def apply(params, x):
        model = parts.bind(params, {}, measured.zeros(parts.measured))
        out = model(x)
        total = jnp.sum(jnp.square(out.astype(jnp.float32)))
        return total, (out, read_measured(model)["dropped"])

    @jax.jit
    def run(params, x):
        grads, (out, dropped) = jax.grad(apply, (0, 1), has_aux=True)(params, x)
        return out, grads, dropped

    return lambda x: run(params, x)
