"""The matmul peak that model FLOP/s are compared with: a known chip's, or measured here."""

import time
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Peaks(NamedTuple):
    """Dense TFLOP/s by the format of the operands; None: the chip has no such matmul."""

    bf16: float  #: float16 as well
    fp8: float | None
    fp4: float | None


#: By device kind (NVIDIA data sheets of the SXM parts, without sparsity; PCIe and NVL parts of the
#: same name reach less, so an MFU there reads low).
CHIPS: Mapping[str, Peaks] = {
    "A100": Peaks(312.0, None, None),
    "H100": Peaks(989.0, 1979.0, None),
    "H200": Peaks(989.0, 1979.0, None),
    "B200": Peaks(2250.0, 4500.0, 9000.0),
}
#: The format that a precision recipe multiplies its weights in.
_FORMATS: Mapping[str, str] = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
}

MEASURED = "matmul measured in this process"


def peak_flops(mesh: Mesh, dtype: type) -> tuple[float, str]:
    """(FLOP/s of all devices of the mesh together, where the figure comes from)."""
    return known_peak(mesh, dtype) or (measured_peak(mesh, dtype), MEASURED)


def known_peak(mesh: Mesh, dtype: type) -> tuple[float, str] | None:
    """As `peak_flops`, of a chip that the table has in this dtype; else None."""
    return recipe_peak(mesh, jnp.dtype(dtype).name)


def recipe_peak(mesh: Mesh, recipe: str) -> tuple[float, str] | None:
    """As `known_peak`, in the format that a precision recipe multiplies its weights in.

    Against it an MFU reads low: embedding, head, attention scores and what the recipe excludes are
    multiplied in bfloat16 all the same.
    """
    kind = mesh.devices.flat[0].device_kind
    for chip, peaks in CHIPS.items():
        tflops = getattr(peaks, _FORMATS[recipe]) if recipe in _FORMATS else None
        if chip in kind and tflops is not None:
            return tflops * 1e12 * mesh.size, f"dense {recipe} peak of {mesh.size} × {chip}"
    return None


def measured_peak(mesh: Mesh, dtype: type, size: int = 1024, secs: float = 0.3) -> float:
    """FLOP/s of square matmuls run on every device of this process at once, times processes."""
    local = mesh.local_mesh
    where = NamedSharding(local, PartitionSpec(local.axis_names))
    x = jax.device_put(jnp.ones((local.size, size, size), dtype), where)
    matmul = jax.jit(lambda x: jnp.einsum("dij,djk->dik", x, x), out_shardings=where)
    jax.block_until_ready(matmul(x))
    best, end = float("inf"), time.perf_counter() + secs
    while time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(matmul(x))
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 * local.size / best * (mesh.size / local.size)
