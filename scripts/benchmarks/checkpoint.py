"""How long a save blocks the training loop, beside synchronous saves of the same state.

    python scripts/benchmarks/checkpoint.py [--mb 200] [--leaves 39] [--rounds 10] [--dir DIR]

Every round saves the same state in each way, in turn, so that all see the same disk and machine.
`blocked` is what the loop waits for, `whole` the time until the checkpoint can be restored, `CPU`
the processor seconds that the process spent until then. Medians, and the ratio of what ours of it
to what each way blocks. The default number of leaves is that of a scanned decoder with AdamW: 13
weights, each with two moments.
"""

import argparse
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints, restore

OURS = "jaxtrain, in the background"


def make_state(megabytes: int, num_leaves: int) -> dict[str, jax.Array]:
    """Normally distributed float32, which compresses as trained weights do: hardly."""
    rng = np.random.default_rng(0)
    size = megabytes * 10**6 // 4 // num_leaves
    return {
        f"leaf_{i}": jnp.asarray(rng.standard_normal((size // 1000, 1000), dtype=np.float32))
        for i in range(num_leaves)
    }


def in_background(directory: pathlib.Path, state: dict) -> Callable[[], None]:
    """Ours; returns what waits for the rest."""
    checkpoints = Checkpoints(directory, CheckpointConfig())
    checkpoints.save(1, {"warm": jnp.zeros(1)}, {})  # threads and imports, once in a run
    checkpoints.wait()
    timer.start()
    checkpoints.save(2, state, {"position": 2})
    return checkpoints.close


def waited_for(directory: pathlib.Path, state: dict) -> Callable[[], None]:
    """Ours, the loop waiting until it is whole."""
    in_background(directory, state)()
    return lambda: None


def orbax_sync(directory: pathlib.Path, state: dict) -> Callable[[], None]:
    """Orbax's synchronous checkpointer as it comes."""
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        timer.start()
        checkpointer.save(directory / "2", args=ocp.args.StandardSave(state))
    return lambda: None


class Timer:
    """Wall and CPU seconds since `start`."""

    def start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def wall(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._wall

    def cpu(self) -> float:
        """Processor seconds since the start."""
        return time.process_time() - self._cpu


timer = Timer()


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--leaves", type=int, default=39)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dir", type=pathlib.Path, help="where to write (default: temporary)")
    options = parser.parse_args()
    state = make_state(options.mb, options.leaves)
    ways = {
        OURS: in_background,
        "jaxtrain, waited for": waited_for,
        "Orbax, synchronous": orbax_sync,
    }
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    restores = []
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        directory = pathlib.Path(name) / "checkpoints"
        for _ in range(options.rounds + 1):  # the first round warms up
            for way, save in ways.items():
                rest = save(directory, state)
                blocked = timer.wall()
                rest()
                times[way].append((blocked, timer.wall(), timer.cpu()))
                if way == OURS:
                    timer.start()
                    jax.block_until_ready(restore(directory, 2, state))
                    restores.append(timer.wall())
                shutil.rmtree(directory)
    medians = {
        way: [statistics.median(values) for values in zip(*rounds[1:], strict=True)]
        for way, rounds in times.items()
    }
    print(f"{options.mb} MB in {options.leaves} leaves, medians of {options.rounds} rounds")
    print(f"{'':28}{'blocked s':>10}{'whole s':>10}{'CPU s':>10}{'ours of it':>14}")
    for way, (blocked, whole, cpu) in medians.items():
        ratio = medians[OURS][0] / blocked
        print(f"{way:28}{blocked:10.4f}{whole:10.4f}{cpu:10.4f}{ratio:13.1%}")
    print(f"restore: {statistics.median(restores[1:]):.3f} s")


if __name__ == "__main__":
    main()
