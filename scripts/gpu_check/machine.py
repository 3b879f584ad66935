"""Where a part runs: on this machine's GPU, on its CPU in miniature, or on none.

Three modes: "gpu" runs the whole plan; "dry" runs it in miniature on a CPU, with FP8 emulated and
kernels interpreted; the name of a target (h100) compiles it for that GPU and runs nothing.
"""

import dataclasses
import pathlib
import subprocess
from typing import Any

import jax
from jax.sharding import Mesh

from gpu_check.plan import DRY, FULL, Scale
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot
from jaxtrain.planning.targets import get_target
from jaxtrain.startup_report import versions

GPU_MODE, DRY_MODE = "gpu", "dry"
_DRIVER = pathlib.Path("/proc/driver/nvidia/version")


@dataclasses.dataclass(frozen=True)
class Machine:
    """One device and what is asked of it."""

    mode: str
    mesh: Mesh

    @property
    def device(self) -> Any:
        """The one device."""
        return self.mesh.devices.flat[0]

    @property
    def platform(self) -> str:
        """What programs are compiled for."""
        return "cpu" if self.mode == DRY_MODE else "gpu"

    @property
    def is_dry(self) -> bool:
        """Everything in miniature on a CPU."""
        return self.mode == DRY_MODE

    @property
    def runs(self) -> bool:
        """Whether programs run, or are compiled only."""
        return self.mode in (GPU_MODE, DRY_MODE)

    @property
    def scale(self) -> Scale:
        """How large everything is."""
        return DRY if self.is_dry else FULL

    @property
    def memory_bytes(self) -> int | None:
        """What programs may take of the device's memory; None: unknown."""
        if not self.runs:
            return get_target(self.mode).memory_bytes
        return (self.device.memory_stats() or {}).get("bytes_limit")


def open_machine(mode: str) -> Machine:
    """The first device of a mode.

    Raises:
      ValueError: where there is no GPU, or no compiler for one.
    """
    if mode not in (GPU_MODE, DRY_MODE):
        return Machine(mode, make_mesh(MeshConfig(), aot.compile_only_devices(mode, 1)))
    device = jax.devices()[0]
    if mode == GPU_MODE and device.platform != "gpu":
        raise ValueError(f"jax runs on {device.device_kind}, not on a GPU; take --dry for that.")
    return Machine(mode, make_mesh(MeshConfig(), [device]))


def describe(machine: Machine) -> dict[str, Any]:
    """Device, driver and versions."""
    device = machine.device
    return {
        "device": device.device_kind,
        "compute_capability": str(getattr(device, "compute_capability", "none")),
        "memory_bytes": machine.memory_bytes,
        "devices_in_sight": len(jax.devices()) if machine.runs else 0,
        "driver": _driver(),
        "platform_version": getattr(device.client, "platform_version", "unknown").strip(),
        "versions": versions(),
    }


def _driver() -> str:
    if _DRIVER.is_file():
        return _DRIVER.read_text().splitlines()[0].strip()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.splitlines()[0].strip() if found.strip() else "unknown"
