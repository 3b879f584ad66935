"""The matmul peak that model FLOP/s are compared with: a known chip's, or measured here."""

import time

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

#: Dense bfloat16 or float16 TFLOP/s by device kind (NVIDIA data sheets of the SXM parts, without
#: sparsity; PCIe and NVL parts of the same name reach less, so an MFU there reads low).
CHIPS_BF16_TFLOPS = {
    "A100": 312.0,
    "H100": 989.0,
    "H200": 989.0,
    "B200": 2250.0,
}


MEASURED = "matmul measured in this process"


def peak_flops(mesh: Mesh, dtype: type) -> tuple[float, str]:
    """(FLOP/s of all devices of the mesh together, where the figure comes from)."""
    return known_peak(mesh, dtype) or (measured_peak(mesh, dtype), MEASURED)


def known_peak(mesh: Mesh, dtype: type) -> tuple[float, str] | None:
    """As `peak_flops`, of a chip that the table has in this dtype; else None."""
    kind = mesh.devices.flat[0].device_kind
    for chip, tflops in CHIPS_BF16_TFLOPS.items():
        if chip in kind and dtype in (jnp.bfloat16, jnp.float16):
            return tflops * 1e12 * mesh.size, f"dense {dtype.__name__} peak of {mesh.size} × {chip}"
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
