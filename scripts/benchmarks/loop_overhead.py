"""What the training loop adds to the jitted step: data, logging, signals, metrics.

    python scripts/benchmarks/loop_overhead.py [--rounds 5] [--steps 40]

Takes the same steps bare (batches made before, one wait at the end) and through `Loop` (Grain
loader, a metrics line and TensorBoard event every 10 steps), in turn, and prints seconds per step
of each. Bare steps wait for the one before, as many unfinished ones can stall XLA's collectives on
CPUs. The step is sized to about 100 ms on two CPU cores.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()

import jax
import numpy as np

from jaxtrain import config as config_lib
from jaxtrain import config_program, stage
from jaxtrain.data.loader import Loader
from jaxtrain.data.store import Tokenization
from jaxtrain.data.writer import PartWriter, create
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.run_config import RunConfig
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from jaxtrain.train.loop import Loop
from jaxtrain.train.writers import JsonLinesWriter, MultiWriter, TensorBoardWriter, Terminal

TINY = pathlib.Path(__file__).resolve().parents[2] / "configs" / "pretrain" / "tiny.py"


class Clocked(MultiWriter):
    """Notes when each line was written."""

    def __init__(self, writers):
        super().__init__(writers)
        self.times = []

    def write_scalars(self, step, scalars):
        """Writes, then notes the time."""
        super().write_scalars(step, scalars)
        self.times.append((step, time.perf_counter()))


def main() -> None:
    """Runs the rounds and prints the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run(pathlib.Path(directory), options.rounds, options.steps)


def run(directory: pathlib.Path, rounds: int, steps: int) -> None:
    """Builds the program once and times both ways in turn."""
    store = str(directory / "store")
    tokenization = Tokenization(4096, {}, "t" * 64, {})
    with PartWriter(store, tokenization) as writer:
        ids = np.random.default_rng(0).integers(0, 4096, (2000, 300))
        for number, document in enumerate(ids):
            writer.add(document, document_id=str(number), source="", num_text_bytes=900)
    create(store, tokenization, "t", writer.parts)
    overrides = {
        "data.sources.stdlib.path": store, "data.batch_size": "2", "data.seq_len": "128",
        "loop.num_steps": str(steps), "loop.log_every": "10", "optim.warmup_steps": "0",
    }  # fmt: skip
    loaded = config_lib.load(RunConfig, str(TINY), overrides.items())
    config = config_lib.resolve(RunConfig, loaded)
    mesh, _ = stage.start_devices(config)
    program = config_program.make_program(config, cross_entropy(config.loss), mesh)
    loader = Loader(config.data, 0)
    batches = [program.put(loader.batch(step), 2) for step in range(steps)]
    jax.block_until_ready(program.train_step(program.init(), {}, batches[0]))

    bare, looped = [], []
    for index in range(rounds):
        state = program.init()
        state, metrics = program.train_step(state, {}, batches[0])
        jax.block_until_ready(metrics)
        start = time.perf_counter()
        for batch in batches[1:]:
            before = metrics
            state, metrics = program.train_step(state, {}, batch)
            jax.block_until_ready(before)
        jax.block_until_ready(metrics)
        bare.append((time.perf_counter() - start) / (steps - 1))

        here = directory / str(index)
        here.mkdir()
        writer = Clocked([JsonLinesWriter(here / "m.jsonl", 0), TensorBoardWriter(here, 0)])
        checkpoints = Checkpoints(here / "checkpoints", CheckpointConfig())
        loop = Loop(
            program, config.loop, loader, {}, checkpoints, 10**9, writer,
            Terminal(steps, 0, silent=True), {}, 1.0, 1.0,
        )  # fmt: skip
        loop.run(program.init())
        checkpoints.close()
        (first, start), (last, end) = writer.times[0], writer.times[-1]
        looped.append((end - start) / (last - first))
    ours, plain = statistics.median(looped), statistics.median(bare)
    print(
        f"bare step {plain * 1e3:.2f} ms, through the loop {ours * 1e3:.2f} ms: {ours / plain:.4f}"
    )
    print("per round:", " ".join(f"{a / b:.3f}" for a, b in zip(looped, bare, strict=True)))


if __name__ == "__main__":
    main()
