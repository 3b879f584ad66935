"""How fast a config trains here: step time, compile time, model FLOP/s, data wait, memory.

Runs the launcher's own step on the config's own batches (or on random tokens with --synthetic) and
prints one table. Nothing is written. For configs of pre-training and fine-tuning; what the losses
of other stages cost beside theirs: scripts/benchmarks/stage_losses.py and distillation.py.

    python -m jaxtrain.bench --config=configs/pretrain/tiny.py --num_steps=20 [--json]
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from jaxtrain import config_program, launch, stage
from jaxtrain.data import sources
from jaxtrain.data.loader import Loader
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.models.flops import num_params
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.run_config import RunConfig
from jaxtrain.train.clock import memory
from jaxtrain.train.peak import MEASURED, known_peak, measured_peak, recipe_peak
from jaxtrain.train.program import Program
from jaxtrain.types import Batch

_WARMUP_STEPS = 2  # after the first: caches and allocator pools fill


def main() -> None:
    """Runs the command line."""
    config, options = launch.parse(RunConfig, _arguments())
    result = measure(config, options.num_steps, options.synthetic)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


def measure(config: RunConfig, num_steps: int, synthetic: bool) -> dict[str, Any]:
    """Compiles, warms up and times `num_steps` steps one by one, each waited for."""
    if num_steps < 1:
        raise ValueError(f"--num_steps={num_steps} must be at least 1.")
    if not synthetic:
        sources.check(config.data, config.model.vocab_size)
    mesh, report = stage.start_devices(config)
    program = config_program.make_program(config, cross_entropy(config.loss), mesh)
    size, num_batches = config.data.batch_size, 1 + _WARMUP_STEPS + num_steps
    rows = program.local_rows(size)
    batches = (
        _random_batches(config, rows)
        if synthetic
        else iter(Loader(config.data, config.loop.seed).iterate(0, num_batches, rows))
    )
    state, frozen = program.init(), program.init_frozen()
    batch = program.put(next(batches), size)

    start = time.perf_counter()
    step = program.train_step.lower(state, frozen, batch).compile()
    compile_secs = time.perf_counter() - start
    state, metrics = step(state, frozen, batch)
    jax.block_until_ready(metrics)
    first_step_secs = time.time() - startup.started

    secs, waits, tokens = [], [], []
    for index in range(_WARMUP_STEPS + num_steps):
        start = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - start
        state, metrics = step(state, frozen, program.put(batch, size))
        jax.block_until_ready(metrics)
        if index >= _WARMUP_STEPS:
            secs.append(time.perf_counter() - start)
            waits.append(waited)
            tokens.append(int(metrics["batch_tokens"]))

    return {
        **report,
        "parameters": num_params(config.model),
        "batch": f"{size} x {config.data.seq_len}" + (" (random tokens)" if synthetic else ""),
        "num_steps": num_steps,
        "compile_secs": compile_secs,
        "first_step_secs": first_step_secs,
        **speed(config, program, secs, tokens),
        "mfu_formula": config_program.MFU_FORMULA,
        "data_wait_secs": statistics.median(waits),
        "data_wait_frac": sum(waits) / sum(secs),
        **memory(),
    }


def speed(
    config: RunConfig, program: Program, secs: Sequence[float], tokens: Sequence[int]
) -> dict[str, Any]:
    """What steps of so many seconds and tokens come to, beside the peaks of the devices.

    `mfu` is against the peak of the compute dtype under every recipe, so that recipes can be
    compared; `mfu_own_precision` is there where the chip has one of the recipe's own format.
    """
    mesh, recipe = program.mesh, config.precision.recipe
    dtype = get_recipe(recipe).compute_dtype
    measured = measured_peak(mesh, dtype)
    peak, peak_source = known_peak(mesh, dtype) or (measured, MEASURED)
    tokens_per_sec = sum(tokens) / sum(secs)
    flops_per_sec = tokens_per_sec * config_program.flops_per_token(config, program)
    result = {
        "step_secs_median": statistics.median(secs),
        "step_secs_p90": float(np.quantile(secs, 0.9)),
        "tokens_per_sec": tokens_per_sec,
        "model_flops_per_sec": flops_per_sec,
        "peak_flops_per_sec": peak,
        "peak_source": peak_source,
        "mfu": flops_per_sec / peak,
        "measured_matmul_flops_per_sec": measured,
        "fraction_of_measured_matmul": flops_per_sec / measured,
    }
    own = recipe_peak(mesh, recipe)
    if own is not None:
        result |= {
            "own_peak_flops_per_sec": own[0],
            "own_peak_source": own[1],
            "mfu_own_precision": flops_per_sec / own[0],
        }
    return result


def show(result: dict[str, Any]) -> None:
    """Prints the table."""
    table = Table(show_header=False, box=None)
    for name, value in result.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else f"{value}")
    Console().print(table)


def _random_batches(config: RunConfig, rows: slice) -> Iterator[Batch]:
    rng, shape = np.random.default_rng(0), (rows.stop - rows.start, config.data.seq_len)
    ones = np.ones(shape, np.int32)
    positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy()
    while True:
        ids = rng.integers(0, config.model.vocab_size, (2, *shape), dtype=np.int32)
        yield Batch(ids[0], ids[1], ones.astype(np.float32), positions, ones)


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    parser.add_argument("--num_steps", type=int, default=20, help="timed steps (default 20)")
    parser.add_argument(
        "--synthetic", action="store_true", help="random tokens instead of the config's stores"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    return parser


if __name__ == "__main__":
    launch.run(main)
