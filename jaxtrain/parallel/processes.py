"""The processes and devices of a run: `jax.distributed` and virtual CPU devices."""

import math
import os

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxtrain.parallel.mesh import AXES, BATCH_AXES, MeshConfig

# One variable of each kind of start that JAX detects by itself, beside an explicit coordinator.
_EXPLICIT = "JAX_COORDINATOR_ADDRESS"
_CLUSTERS = {
    "Slurm": ("SLURM_STEP_NODELIST", "SLURM_PROCID"),
    "Kubernetes": ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"),
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
}


def initialize() -> str:
    """Joins the other processes of a multi-process start, if this is one; says what was found.

    Explicit: JAX_COORDINATOR_ADDRESS=host:port, JAX_NUM_PROCESSES and JAX_PROCESS_ID. Slurm,
    Kubernetes (JobSet, indexed Job) and Open MPI are detected by `jax.distributed`.

    Raises:
      Exception: whatever `jax.distributed.initialize` raises. A process that cannot join must not
        train alone.
    """
    if _EXPLICIT in os.environ:
        names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
        missing = [name for name in names if not os.environ.get(name, "").isdigit()]
        if missing:
            raise ValueError(f"{_EXPLICIT} is set, so {missing[0]} must be set to a number too.")
        count, index = (int(os.environ[name]) for name in names)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(num_processes=count, process_id=index)
        return f"process {index} of {count}, coordinator {os.environ[_EXPLICIT]}"
    for cluster, variables in _CLUSTERS.items():
        if all(variable in os.environ for variable in variables) and _several(cluster):
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize()
            return f"process {jax.process_index()} of {jax.process_count()}, found {cluster}"
    return "one process"


def set_cpu_devices(config: MeshConfig, batch_rows: int) -> str:
    """One virtual CPU device per core, or as many as the mesh asks for; says what was chosen.

    XLA runs one CPU device mostly on one core, so a mesh with a free axis gets as many devices as
    there are cores and as divide `batch_rows` (rows of one microbatch). The environment variable
    JAX_NUM_CPU_DEVICES decides where it is set. Call before anything touches a device.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ:
        return f"{_positive('JAX_NUM_CPU_DEVICES')} CPU device(s) by JAX_NUM_CPU_DEVICES"
    sizes = [getattr(config, axis) for axis in AXES]
    fixed = math.prod(size for size in sizes if size)
    processes = _positive("JAX_NUM_PROCESSES") if "JAX_NUM_PROCESSES" in os.environ else 1
    if 0 not in sizes:
        if fixed % processes:
            return "CPU devices left to jax: the mesh does not divide by the processes"
        count, reason = fixed // processes, "as the mesh asks"
    else:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        free = max(1, (cores or 1) // fixed)
        split = math.prod(max(1, getattr(config, axis)) for axis in BATCH_AXES)
        takes_rows = config.tensor > 0  # else the free axis is the one that splits no rows
        while free > 1 and takes_rows and batch_rows % (free * split * processes):
            free -= 1
        count, reason = free * fixed, f"{cores} core(s), batch of {batch_rows} rows"
    jax.config.update("jax_num_cpu_devices", count)
    return f"{count} virtual CPU device(s): {reason}"


def _positive(name: str) -> int:
    text = os.environ[name]
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{name}={text!r} in the environment must be a number of at least 1.")
    return int(text)


def is_primary() -> bool:
    """Whether this process writes what is written once."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def agreed(number: int) -> int:
    """The primary process's number, on every process."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def _several(cluster: str) -> bool:
    count = {"Slurm": "SLURM_NTASKS", "Open MPI": "OMPI_COMM_WORLD_SIZE"}.get(cluster)
    return count is None or int(os.environ.get(count, "1")) > 1
