"""Compiles a config's train step for NVIDIA H100s on a machine without a GPU.

    pip install jax-cuda12-pjrt==V jax-cuda12-plugin==V nvidia-cudnn-cu12    (V: that of jaxlib)
    python scripts/benchmarks/gpu_compile.py --config=configs/pretrain/1b.py --num_gpus=8 \
        [--config.data.batch_size=8]

Prints what XLA's GPU pipeline makes of it: bytes per device, collectives in the program (those in a
loop over layers count once), cuDNN attention calls. Nothing is timed and nothing runs.
"""

import collections
import os
import pathlib
import re
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"  # there is no GPU to tune on
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from jaxtrain import launch, stage
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import AXES
from jaxtrain.run_config import RunConfig
from jaxtrain.types import Batch

# NVIDIA's data sheet and device query of an H100 SXM.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  runtime_version: "12.9.0" driver_version: "12.9.0" compile_time_toolkit_version: "12.9.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
COLLECTIVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def main() -> None:
    """Compiles and prints."""
    parser = launch.parser(__doc__)
    parser.add_argument("--num_gpus", type=int, default=8)
    config, options = launch.parse(RunConfig, parser)
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        topology=f"1x1x{options.num_gpus}",
        target_config=H100,
    )
    shape = config.mesh.shape(options.num_gpus)
    types = (AxisType.Auto,) * len(AXES)
    mesh = Mesh(np.asarray(topology.devices).reshape(shape), AXES, axis_types=types)
    program = stage.make_program(config, cross_entropy(config.loss), mesh, platform="gpu")
    rows = (config.data.batch_size, config.data.seq_len)
    ints, floats = (jax.ShapeDtypeStruct(rows, dtype) for dtype in (jnp.int32, jnp.float32))
    start = time.perf_counter()
    compiled = program.lower(Batch(ints, ints, floats, ints, ints), platform="cuda").compile()
    text = compiled.as_text() or ""
    print(f"compiled in {time.perf_counter() - start:.0f} s")
    memory = compiled.memory_analysis()
    for name in ("argument", "alias", "temp"):
        print(f"{name}: {getattr(memory, f'{name}_size_in_bytes') / 1e9:.2f} GB per device")
    print(collections.Counter(re.findall(rf" ({COLLECTIVES})(?:-start)?\(", text)))
    print("cuDNN attention calls:", text.count("__cudnn$fmha"))


if __name__ == "__main__":
    launch.run(main)
