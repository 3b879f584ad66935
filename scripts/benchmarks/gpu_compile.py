"""Compiles a config's train step for NVIDIA GPUs on a machine without one.

    pip install -e '.[aot]' nvidia-cudnn-cu12
    python scripts/benchmarks/gpu_compile.py --config=configs/pretrain/1b.py --num_gpus=8 \
        [--target=h100] [--config.data.batch_size=8]

Prints what XLA's GPU pipeline makes of it: bytes per device, matmuls by their operands, kernels and
collectives, each counted as often as it runs. Nothing is timed and nothing runs.
"""

import collections
import os
import pathlib
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp

from jaxtrain import config_program, launch
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import make_mesh
from jaxtrain.planning import aot, hlo
from jaxtrain.planning.targets import TARGETS
from jaxtrain.run_config import RunConfig
from jaxtrain.types import Batch


def main() -> None:
    """Compiles and prints."""
    parser = launch.parser(__doc__)
    parser.add_argument("--target", choices=tuple(TARGETS), default="h100")
    parser.add_argument("--num_gpus", type=int, default=8)
    config, options = launch.parse(RunConfig, parser)
    devices = aot.compile_only_devices(options.target, options.num_gpus)
    mesh = make_mesh(config.mesh, devices)
    program = config_program.make_program(config, cross_entropy(config.loss), mesh, platform="gpu")
    rows = (config.data.batch_size, config.data.seq_len)
    ints, floats = (jax.ShapeDtypeStruct(rows, dtype) for dtype in (jnp.int32, jnp.float32))
    start = time.perf_counter()
    lowered = program.lower(Batch(ints, ints, floats, ints, ints), platform="cuda")
    compiled = aot.compile_program(lowered, triton_gemm=False)
    print(f"compiled in {time.perf_counter() - start:.0f} s")
    memory = compiled.memory_analysis()
    for name in ("argument", "alias", "temp"):
        print(f"{name}: {getattr(memory, f'{name}_size_in_bytes') / 1e9:.2f} GB per device")
    report(hlo.read(compiled.as_text() or ""))


def report(contents: hlo.Contents) -> None:
    """Prints the parts of a program that cost."""
    flops: collections.Counter[str] = collections.Counter()
    for each in contents.matmuls:
        flops[f"{each.kernel} {each.lhs.dtype} × {each.rhs.dtype}"] += int(each.flops * each.times)
    for name, total in flops.most_common():
        print(f"matmul {name}: {total / 1e12:.2f} TFLOP per device")
    kernels: collections.Counter[str] = collections.Counter()
    for kernel in contents.kernels:
        kernels[kernel.target] += kernel.times
    for name, times in kernels.most_common():
        print(f"kernel {name}: {times} runs")
    for kind, total in contents.collective_bytes().items():
        print(f"{kind}: {total / 1e9:.2f} GB per device")


if __name__ == "__main__":
    launch.run(main)
