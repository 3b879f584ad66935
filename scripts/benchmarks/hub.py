"""Import and export of a Hugging Face checkpoint, beside reading and writing as many bytes.

    python scripts/benchmarks/hub.py [--gb 1.0] [--dtype bfloat16] [--rounds 3] [--dir DIR]

A random Llama is written, imported into parameters and into a workdir, and exported again; beside
each step the bytes that it has to move are read and written plainly (written: to the disk, with
fsync). Parameters are float32, so an import of 1 GB of bfloat16 writes 2 GB. Medians of wall and
CPU seconds, the ratio of both, and how much memory the import took beyond the parameters. Files
that were just written are read from the page cache, which no disk is as fast as.
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import contextlib
import os
import pathlib
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from jaxtrain.export import export
from jaxtrain.hub import families, save
from jaxtrain.hub.load import abstract_model, load_params
from jaxtrain.hub.model import HubModel, logical_leaves
from jaxtrain.import_hf import import_model, target
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.parameters import flatten

_CHUNK = 2**24


def make_checkpoint(directory: pathlib.Path, gigabytes: float, dtype: str) -> ModelConfig:
    """A random Llama of about that size, in files of up to 5 GB."""
    width, layer_params = 2048, 12 * 2048**2  # of a layer as below
    itemsize = save.DTYPES[dtype].itemsize
    vocab = 32_000
    layers = max(1, round((gigabytes * 1e9 / itemsize - 2 * vocab * width) / layer_params))
    config = ModelConfig(
        vocab_size=vocab,
        num_layers=layers,
        d_model=width,
        num_heads=16,
        num_kv_heads=4,
        head_dim=128,
        d_ff=5_325,
        context_len=2048,
    )
    parts = abstract_model(config)
    shapes = {path: leaf.shape for path, leaf in flatten(parts.params).items()}
    leaves = logical_leaves(flatten(parts.axes), shapes, vocab)
    rng = np.random.default_rng(0)

    def random_part(path: str, where: tuple[slice, ...]) -> np.ndarray:
        outer = [each.stop - (each.start or 0) for each in where]
        return rng.standard_normal((*outer, *shapes[path][len(outer) :]), dtype=np.float32)

    directory.mkdir()
    family = families.choose(config)
    save.save_model(directory, family, config, dtype, random_part, leaves, token_ids={})
    return config


def read_plainly(directory: pathlib.Path) -> int:
    """Reads every file once; returns the bytes."""
    buffer, total = bytearray(_CHUNK), 0
    for path in directory.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    total += count
    return total


def read_widened(model: HubModel) -> list[np.ndarray]:
    """Every tensor as float32 in new memory, as it lies: the least that any import does."""
    tensors = model.tensors
    return [tensors.read(name).astype(np.float32) for name in tensors.entries]


def write_plainly(path: pathlib.Path, num_bytes: int) -> None:
    """Writes as many bytes to the disk."""
    block = np.random.default_rng(0).bytes(_CHUNK)
    with open(path, "xb", buffering=0) as file:
        for start in range(0, num_bytes, _CHUNK):
            file.write(block[: num_bytes - start])
        os.fsync(file.fileno())
    path.unlink()


class Stopwatch:
    """Wall and CPU seconds by name, over rounds."""

    def __init__(self) -> None:
        self.times: dict[str, list[tuple[float, float]]] = {}

    def __call__(self, name: str, work: Callable[[], object]) -> None:
        """Runs and times `work`."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        took = time.perf_counter() - wall, time.process_time() - cpu
        self.times.setdefault(name, []).append(took)

    def medians(self, name: str) -> tuple[float, float]:
        """Of wall and CPU seconds."""
        wall, cpu = zip(*self.times[name], strict=True)
        return statistics.median(wall), statistics.median(cpu)


@contextlib.contextmanager
def peak_of_memory() -> Iterator[list[int]]:
    """Most bytes of anonymous memory during the block (mapped files are the kernel's to drop)."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            peak[0] = max(peak[0], _anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _anonymous() -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(directory: pathlib.Path, rounds: int, watch: Stopwatch) -> tuple[int, int]:
    """Runs every step in turn; returns (bytes of memory beyond the parameters, largest tensor)."""
    model, beyond = HubModel(directory / "model"), 0
    abstract, axes = target(model.config)
    num_model_bytes = sum(entry.num_bytes for entry in model.tensors.entries.values())
    num_param_bytes = sum(leaf.size * 4 for leaf in jax.tree.leaves(abstract))
    for _ in range(rounds + 1):  # the first warms up
        for name in ("workdir", "out"):
            shutil.rmtree(directory / name, ignore_errors=True)
        watch("read the model", lambda: read_plainly(directory / "model"))
        watch("read the model, widen", lambda: read_widened(model))
        before = _anonymous()
        with peak_of_memory() as peak:
            watch(
                "load: files to parameters",
                lambda: jax.block_until_ready(load_params(model, abstract, axes)),
            )
        beyond = max(beyond, peak[0] - before - num_param_bytes)
        watch(
            "import_hf: model to workdir",
            lambda: import_model(model, directory / "workdir", "model"),
        )
        watch("write a checkpoint", lambda: write_plainly(directory / "x", num_param_bytes))
        watch("read a checkpoint", lambda: read_plainly(directory / "workdir"))
        watch(
            "export: workdir to model", lambda: export(directory / "workdir", 0, directory / "out")
        )
        watch("write the model", lambda: write_plainly(directory / "x", num_model_bytes))
    for name in watch.times:
        del watch.times[name][0]
    entries = model.tensors.entries.values()
    return beyond, max(entry.num_bytes for entry in entries)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--dtype", choices=tuple(save.DTYPES), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=pathlib.Path, help="where to write (default: temporary)")
    options = parser.parse_args()
    watch = Stopwatch()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        directory = pathlib.Path(name)
        make_checkpoint(directory / "model", options.gb, options.dtype)
        num_bytes = sum(path.stat().st_size for path in (directory / "model").iterdir())
        beyond, largest = measure(directory, options.rounds, watch)
    print(f"{num_bytes / 1e9:.2f} GB in {options.dtype}, medians of {options.rounds} rounds")
    print(f"{'':30}{'wall s':>9}{'CPU s':>9}{'of the bytes alone: wall':>28}{'CPU':>8}")
    compared = {
        "load: files to parameters": ["read the model, widen"],
        "import_hf: model to workdir": ["read the model", "write a checkpoint"],
        "export: workdir to model": ["read a checkpoint", "write the model"],
    }
    for step, plain in compared.items():
        wall, cpu = watch.medians(step)
        plain_wall, plain_cpu = (
            sum(watch.medians(each)[kind] for each in plain) for kind in range(2)
        )
        ratios = f"{wall / plain_wall:27.2f}x{cpu / plain_cpu:7.2f}x"
        print(f"{step:30}{wall:9.3f}{cpu:9.3f}{ratios}")
    for step in (
        "read the model",
        "read the model, widen",
        "write a checkpoint",
        "read a checkpoint",
        "write the model",
    ):
        wall, cpu = watch.medians(step)
        print(f"{step:30}{wall:9.3f}{cpu:9.3f}")
    print(
        f"memory beyond the parameters while loading: {beyond / 1e6:,.0f} MB (largest tensor "
        f"{largest / 1e6:,.0f} MB); process at most "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"
    )


if __name__ == "__main__":
    main()
