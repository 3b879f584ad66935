"""Compiles for GPUs on a machine without one ("ahead of time"): XLA's whole GPU pipeline runs.

    devices = compile_only_devices("h100", 8)
    mesh = make_mesh(config.mesh, devices)
    program = config_program.make_program(config, loss, mesh, platform="gpu")
    compiled = compile_program(program.lower(batch, platform="cuda"))

    compiled.memory_analysis()                  bytes per device
    hlo.read(compiled.as_text())                matmuls, kernels and collectives

Needs `jax-cuda12-pjrt` and `jax-cuda12-plugin` of jaxlib's version (the extra `aot`), and
`nvidia-cudnn-cu12` besides for cuDNN attention; no driver and no other CUDA library.
"""

import importlib.metadata
import importlib.util
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from jaxtrain.planning.targets import get_target

#: Distributions that hold XLA's GPU compiler.
PACKAGES = ("jax-cuda12-pjrt", "jax-cuda12-plugin")


def missing() -> str | None:
    """Why nothing can be compiled for GPUs here, as one line; None where it can be."""
    jaxlib = importlib.metadata.version("jaxlib")
    wanted = " ".join(f"{name}=={jaxlib}" for name in PACKAGES)
    for name in PACKAGES:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed, which holds XLA's GPU compiler: pip install {wanted}"
        if found != jaxlib:
            return f"{name} {found} is not of jaxlib's version {jaxlib}: pip install {wanted}"
    return None


def compile_only_devices(target: str, num_gpus: int, num_hosts: int = 1) -> Sequence[jax.Device]:
    """Devices that programs can be compiled for and not run on.

    Args:
      target: a key of `targets.TARGETS`.
      num_gpus: of all hosts together.

    Raises:
      ValueError: for an unknown target, GPUs that do not divide, or where the compiler is missing.
    """
    described = get_target(target).description
    if num_gpus < 1 or num_gpus % num_hosts:
        raise ValueError(f"{num_gpus} GPUs must be a multiple of {num_hosts} hosts and at least 1.")
    lacking = missing()
    if lacking:
        raise ValueError(lacking)
    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        topology=f"1x{num_hosts}x{num_gpus // num_hosts}",
        target_config=described,
    )
    return topology.devices


def compile_program(
    lowered: jax.stages.Lowered, *, triton_gemm: bool = True
) -> jax.stages.Compiled:
    """Compiles for the devices that `lowered` was traced for.

    Args:
      triton_gemm: False: every matmul that cuBLAS can do is its. XLA decides between the two by
        timing both, which takes a GPU; Triton's fusions hide the call that tells an FP8 matmul.
    """
    options = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": triton_gemm}
    return lowered.compile(compiler_options=options)
