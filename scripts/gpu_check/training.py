"""Trains one model under one recipe: what was compiled, how fast it runs, and whether it learns."""

import math
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from gpu_check import fallbacks
from gpu_check.checks import NO_GPU, Checks
from gpu_check.machine import Machine
from jaxtrain import bench, config_program
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.models import low_precision
from jaxtrain.models.flops import num_active_params, num_params
from jaxtrain.models.parameters import flatten
from jaxtrain.planning import aot
from jaxtrain.precision.recipe import training_recipe
from jaxtrain.run_config import RunConfig
from jaxtrain.train.clock import memory
from jaxtrain.train.program import Program
from jaxtrain.types import Batch

_WARMUP_STEPS = 3  # whose time is not counted
NUM_LAST = 10  # losses that are compared


def run(machine: Machine, model: str, recipe: str, checks: Checks) -> dict[str, Any]:
    """Compiles, proves, trains; returns figures.

    Raises:
      ValueError: where the device has not the memory.
    """
    config = machine.scale.config(model, recipe, emulate=machine.is_dry)
    program = config_program.make_program(
        config, cross_entropy(config.loss), machine.mesh, platform=machine.platform
    )
    attention, why = config_program.choose_attention(config, machine.platform)
    figures = {
        "parameters": num_params(config.model),
        "active_parameters": num_active_params(config.model),
        "batch": f"{config.data.batch_size} x {config.data.seq_len}",
        "attention": f"{attention}: {why}",
        "precision": _precision(config, program),
    }
    if config.model.num_experts is not None:
        figures["experts"] = ": ".join(config_program.choose_dispatch(config, machine.platform))
    start = time.perf_counter()
    compiled = _compile(machine, program, config)
    figures["compile_secs"] = time.perf_counter() - start
    print(f"  compiled in {figures['compile_secs']:.0f} s", flush=True)
    figures |= _bytes(compiled)
    _prove(machine, config, attention, compiled, checks, figures)
    _check_fits(machine, figures["program_bytes"])
    if machine.runs:
        figures |= _train(machine, config, program, compiled, checks)
    return figures


def _precision(config: RunConfig, program: Program) -> str:
    recipe = training_recipe(config.precision)
    return low_precision.describe(recipe, config.model, flatten(program.model.axes))


def _compile(machine: Machine, program: Program, config: RunConfig) -> jax.stages.Compiled:
    shape = (config.data.batch_size, config.data.seq_len)
    ints, floats = (jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.int32, jnp.float32))
    batch = Batch(ints, ints, floats, ints, ints)
    if machine.runs:
        return program.lower(batch).compile()
    return aot.compile_program(program.lower(batch, platform="cuda"), triton_gemm=False)


def _bytes(compiled: jax.stages.Compiled) -> dict[str, int]:
    """What the program takes: state and batch, what it makes besides, and both together."""
    found: Any = compiled.memory_analysis()
    arguments, temporaries = found.argument_size_in_bytes, found.temp_size_in_bytes
    outputs = found.output_size_in_bytes - found.alias_size_in_bytes
    return {
        "argument_bytes": arguments,
        "temporary_bytes": temporaries,
        "program_bytes": arguments + temporaries + outputs,
    }


def _prove(
    machine: Machine,
    config: RunConfig,
    attention: str,
    compiled: jax.stages.Compiled,
    checks: Checks,
    figures: dict[str, Any],
) -> None:
    if machine.is_dry:
        for what in ("attention is cuDNN's kernel", "no matmul or kernel fell back"):
            checks.leave_out(what)
        return
    checks.expect("attention is cuDNN's", attention == "cudnn", figures["attention"])
    figures["matmul_tflop"] = fallbacks.prove(config, attention, compiled.as_text() or "", checks)


def _check_fits(machine: Machine, needed: int) -> None:
    available = machine.memory_bytes
    if available is not None and needed > available:
        raise ValueError(
            f"the program takes {needed / 1e9:.1f} GB and {machine.device.device_kind} gives "
            f"{available / 1e9:.1f} GB; this check is sized for GPUs of 80 GB and more"
        )


def _train(
    machine: Machine,
    config: RunConfig,
    program: Program,
    compiled: jax.stages.Compiled,
    checks: Checks,
) -> dict[str, Any]:
    scale, size = machine.scale, config.data.batch_size
    state, frozen = program.init(), program.init_frozen()
    losses, secs, tokens = [], [], []
    metrics: dict[str, Any] = {}
    for batch in scale.batches():
        start = time.perf_counter()
        state, metrics = compiled(state, frozen, program.put(batch, size))
        jax.block_until_ready(metrics)
        secs.append(time.perf_counter() - start)
        losses.append(float(metrics["loss"]))
        tokens.append(int(metrics["batch_tokens"]))
    figures = {
        "losses": losses,
        "last_loss": statistics.fmean(losses[-NUM_LAST:]),
        "guess_loss": scale.guess_nats,
        "least_loss": scale.least_nats,
        **memory(),
        **bench.speed(config, program, secs[_WARMUP_STEPS:], tokens[_WARMUP_STEPS:]),
    }
    is_finite = all(map(math.isfinite, losses))
    skipped = int(metrics["skipped"])
    checks.expect(
        "every loss is finite and no update was skipped",
        is_finite and skipped == 0,
        f"{sum(not math.isfinite(loss) for loss in losses)} losses are not, {skipped} skipped",
    )
    checks.expect(
        "the model learns which ids follow which",
        is_finite and scale.least_nats < figures["last_loss"] < scale.guess_nats,
        f"{losses[0]:.3f} at first, {figures['last_loss']:.3f} nats at last; without the order of "
        f"ids {scale.guess_nats:.3f}, at best {scale.least_nats:.3f}",
    )
    if machine.is_dry:
        checks.leave_out("step time, MFU and device memory", f"{NO_GPU}: figures are of a CPU")
    return figures
