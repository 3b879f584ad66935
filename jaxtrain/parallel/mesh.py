"""The device mesh: six named axes whose product is the number of devices."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxtrain.options import option

AXES = ("data", "fsdp", "expert", "pipe", "context", "tensor")
BATCH_AXES = ("data", "fsdp", "expert")  # the batch is split over these, in this order
_NOT_YET = ("pipe", "context")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many ways each technique splits the work; one axis may be 0 = all remaining devices."""

    data: int = option(
        0, "Data parallel: splits the batch (0 = all remaining devices).", resumable=True
    )
    fsdp: int = option(
        1, "Splits batch, parameters, gradients and optimizer state (ZeRO).", resumable=True
    )
    expert: int = option(
        1, "Splits experts, and the batch (tokens travel by all-to-all).", resumable=True
    )
    pipe: int = option(1, "Splits layers into pipeline stages; only 1 so far.", resumable=True)
    context: int = option(1, "Splits the sequence; only 1 so far.", resumable=True)
    tensor: int = option(
        1, "Splits heads, feed-forward width and vocabulary (Megatron).", resumable=True
    )
    sharding: str = option(
        "zero3",
        "What the fsdp axis splits: zero3 all; zero2 gradients and optimizer state; zero1 the "
        "optimizer state only (over data as well).",
        choices=("zero1", "zero2", "zero3"),
        resumable=True,
    )

    def __post_init__(self):
        sizes = {axis: getattr(self, axis) for axis in AXES}
        for axis, size in sizes.items():
            if size < 0:
                raise ValueError(f"{axis}={size} must be at least 1, or 0 for all other devices.")
        fills = [axis for axis, size in sizes.items() if size == 0]
        if len(fills) > 1:
            raise ValueError(f"{fills[1]}=0 must be at least 1: {fills[0]}=0 takes what is left.")
        for axis in _NOT_YET:
            if sizes[axis] != 1:
                raise ValueError(f"{axis}={sizes[axis]} must be 1: this axis is not built yet.")

    def shape(self, num_devices: int) -> tuple[int, ...]:
        """The size of each of `AXES` on `num_devices`.

        Raises:
          ValueError: where the sizes do not divide or do not use the devices.
        """
        sizes = [getattr(self, axis) for axis in AXES]
        fixed = math.prod(size for size in sizes if size)
        told = " × ".join(
            f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True) if size > 1
        )
        if 0 in sizes:
            if num_devices % fixed:
                raise ValueError(f"mesh {told or 1} must divide the {num_devices} devices.")
            sizes[sizes.index(0)] = num_devices // fixed
        elif fixed != num_devices:
            raise ValueError(
                f"mesh {told or 1} needs {fixed} devices but {num_devices} are here; "
                "change the sizes or set one axis to 0."
            )
        return tuple(sizes)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of `config` over `devices` (default: all, of every process).

    Axis types are Auto (`jax.make_mesh` would default to Explicit): XLA's GSPMD lowers the
    shardings that `sharding.py` names.
    """
    devices = jax.devices() if devices is None else devices
    shape = config.shape(len(devices))
    types = (AxisType.Auto,) * len(AXES)
    if devices[0].platform == "cpu":  # no topology to arrange; keeps processes' rows contiguous
        return Mesh(np.asarray(devices).reshape(shape), AXES, axis_types=types)
    return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts the batch is split."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def describe(mesh: Mesh) -> str:
    """The mesh in one line, e.g. `data=2 fsdp=4 on 8 × NVIDIA H100`."""
    device = mesh.devices.flat[0]
    sizes = (
        " ".join(f"{axis}={size}" for axis, size in mesh.shape.items() if size > 1) or "1 device"
    )
    return f"{sizes} on {mesh.size} × {device.device_kind} in {jax.process_count()} process(es)"
