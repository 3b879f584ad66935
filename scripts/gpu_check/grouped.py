"""Our matmul kernels on this device against plain XLA: grouped, and of FP8 tiles."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu_check import differences, timing
from gpu_check.checks import Checks
from gpu_check.machine import Machine
from jaxtrain.kernels import block_scaled_matmul, blocks, grouped_matmul
from jaxtrain.kernels.block_scaled_matmul import TILE
from jaxtrain.kernels.blocks import Block, GroupedBlocks

E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
#: Of blocks, matrices and gradients; the dtype of results; how far these may be from float32's.
#: Hopper sums FP8 products with about 14 bits of mantissa.
FORMATS = {
    "bfloat16": ((jnp.bfloat16,) * 3, jnp.bfloat16, 2.0**-7),
    "float32": ((jnp.float32,) * 3, jnp.float32, 2e-5),
    "FP8": ((E4M3, E4M3, E5M2), jnp.float32, 2.0**-9),
}
#: Group of each block in use; the first, the fourth and the last group are empty.
_GROUPS = (1, 1, 1, 2, 4, 4, 5)
_NUM_GROUPS, _NUM_BLOCKS = 7, 9
_TERMS, _COLUMNS = 520, 392  # no multiples of blocks
_DRY_SIZES = GroupedBlocks(32, Block(32, 32, 4, 2), Block(32, 32, 4, 2))
_DRY_BLOCK = Block(16, 32, 4, 2)
_FAST_ENOUGH = "the grouped matmul in bfloat16 is at least half as fast as XLA's matmul"
#: What is timed: the experts of one layer of the plan's mixture, evenly loaded.
_FULL_TIMED, _DRY_TIMED = (512, 16, 2048), (4, 2, 32)  # blocks, groups, width


def run(machine: Machine, checks: Checks) -> dict[str, Any]:
    """Compares every format with plain XLA in float32, then times the product of a layer."""
    for name, (dtypes, dtype, bound) in FORMATS.items():
        _compare(machine, name, dtypes, dtype, bound, checks)
    _compare_tiles(machine, checks)
    return _time(machine, checks)


def _spec(machine: Machine) -> grouped_matmul.Spec:
    if machine.is_dry:
        return grouped_matmul.Spec(_DRY_SIZES, has_fp8=True, interpret=True)
    device = machine.device
    return grouped_matmul.Spec(blocks.grouped_matmul(device), blocks.has_fp8(device))


def all_three(spec: grouped_matmul.Spec, dtype: Any) -> Callable:
    """A jitted function of blocks, matrices, gradients, groups and how many blocks are in use."""

    @jax.jit
    def run(x, matrices, d_out, group, num_used):
        out = grouped_matmul.product(spec, x, matrices, group, num_used, dtype)
        d_x = grouped_matmul.product(spec, d_out, matrices, group, num_used, dtype, transposed=True)
        num_groups = len(matrices)
        return (
            out,
            d_x,
            grouped_matmul.of_matrices(spec, x, d_out, num_groups, group, num_used, dtype),
        )

    return run


@jax.jit
def _reference(x, matrices, d_out, group, num_used):
    """The same in float32 by plain XLA, a matrix for each block."""
    wide = [each.astype(jnp.float32) for each in (x, matrices, d_out)]
    is_used = (jnp.arange(len(x)) < num_used)[:, None, None]
    x, matrices, d_out = jnp.where(is_used, wide[0], 0), wide[1], jnp.where(is_used, wide[2], 0)
    einsum = functools.partial(jnp.einsum, precision="highest")
    chosen = matrices[group]
    of_blocks = einsum("brd,brf->bdf", x, d_out)
    d_matrices = jnp.zeros_like(matrices).at[group].add(of_blocks)
    return einsum("brd,bdf->brf", x, chosen), einsum("brf,bdf->brd", d_out, chosen), d_matrices


def _compare(
    machine: Machine, name: str, dtypes: tuple, dtype: Any, bound: float, checks: Checks
) -> None:
    spec = _spec(machine)
    terms, columns = (40, 24) if machine.is_dry else (_TERMS, _COLUMNS)
    rng, rows = np.random.default_rng(0), spec.blocks.rows
    shapes = (
        (_NUM_BLOCKS, rows, terms),
        (_NUM_GROUPS, terms, columns),
        (_NUM_BLOCKS, rows, columns),
    )
    arrays = [jnp.asarray(rng.standard_normal(s), d) for s, d in zip(shapes, dtypes, strict=True)]
    # Blocks behind those in use may be of any group.
    group = jnp.asarray((*_GROUPS, *[0] * (_NUM_BLOCKS - len(_GROUPS))), jnp.int32)
    arguments = (*arrays, group, jnp.int32(len(_GROUPS)))
    kernel = all_three(spec, dtype)
    found, again, expected = kernel(*arguments), kernel(*arguments), _reference(*arguments)
    errors = [differences.largest_error(a, b) for a, b in zip(found, expected, strict=True)]
    checks.expect(
        f"grouped matmul in {name} equals plain XLA in float32",
        max(errors) <= bound,
        f"output {errors[0]:.1e}, gradients {errors[1]:.1e} and {errors[2]:.1e}; at most "
        f"{bound:.1e}",
    )
    checks.expect(
        f"grouped matmul in {name} gives the same bits twice",
        differences.same_bits(found, again),
        "compared bit for bit",
    )


def _compare_tiles(machine: Machine, checks: Checks) -> None:
    """Rows with scales of their own times a weight whose scales are of 128 × 128."""
    block = _DRY_BLOCK if machine.is_dry else blocks.block_scaled_matmul(machine.device)
    spec = block_scaled_matmul.Spec(block, interpret=machine.is_dry)
    rows, cols, terms = (40, 140, 300) if machine.is_dry else (1000, 520, 1000)
    tiles, rng = -(-terms // TILE), np.random.default_rng(0)
    a, b = (jnp.asarray(4 * rng.standard_normal((n, terms)), jnp.float32) for n in (rows, cols))
    a, b = a.astype(E5M2), b.astype(E4M3)
    scale_a, scale_b = (
        jnp.asarray(2.0 ** rng.integers(-3, 4, (n, tiles)), jnp.float32)
        for n in (rows, -(-cols // TILE))
    )

    kernel = jax.jit(
        functools.partial(block_scaled_matmul.block_scaled_matmul, spec, dtype=jnp.float32)
    )
    found, again = (kernel(a, scale_a, b, scale_b) for _ in range(2))
    wide_a = np.asarray(a, np.float64) * np.repeat(scale_a, TILE, 1)[:, :terms]
    spread_b = np.repeat(np.repeat(scale_b, TILE, 0)[:cols], TILE, 1)[:, :terms]
    expected = wide_a @ (np.asarray(b, np.float64) * spread_b).T
    error, bound = differences.largest_error(found, jnp.asarray(expected)), FORMATS["FP8"][2]
    checks.expect(
        "product of FP8 tiles equals float64's",
        error <= bound and differences.same_bits(found, again),
        f"{error:.1e} apart, at most {bound:.1e}; the same bits twice: "
        f"{differences.same_bits(found, again)}",
    )


def _time(machine: Machine, checks: Checks) -> dict[str, Any]:
    """Output and both gradients beside XLA's matmuls of as much arithmetic."""
    spec = _spec(machine)
    num_blocks, num_groups, width = _DRY_TIMED if machine.is_dry else _FULL_TIMED
    of_rows = (num_blocks, spec.blocks.rows, width)
    shapes = (of_rows, (num_groups, width, width), of_rows)
    wide = [jax.random.normal(jax.random.key(i), s, jnp.bfloat16) for i, s in enumerate(shapes)]
    group = jnp.arange(num_blocks, dtype=jnp.int32) * num_groups // num_blocks
    figures = {}
    for name in ("bfloat16", "FP8"):
        dtypes, _, _ = FORMATS[name]
        arrays = [x.astype(dtype) for x, dtype in zip(wide, dtypes, strict=True)]
        run = all_three(spec, jnp.bfloat16)
        arguments = (*arrays, group, jnp.int32(num_blocks))
        checks.expect(
            f"grouped matmul in {name}, as large as a layer, gives the same bits twice",
            differences.same_bits(run(*arguments), run(*arguments)),
            "compared bit for bit",
        )
        figures[f"{name}_ms"] = 1e3 * timing.seconds(run, arguments)

    @jax.jit
    def plain(x, matrix, d_out):
        return x @ matrix, d_out @ matrix.T, x.T @ d_out

    flat = (wide[0].reshape(-1, width), wide[1][0], wide[2].reshape(-1, width))
    figures["xla_bfloat16_ms"] = 1e3 * timing.seconds(plain, flat)
    shares = [figures["xla_bfloat16_ms"] / figures[f"{name}_ms"] for name in ("bfloat16", "FP8")]
    if machine.is_dry:
        checks.leave_out(_FAST_ENOUGH)
        return figures
    checks.expect(
        _FAST_ENOUGH,
        shares[0] >= 0.5,
        f"{shares[0]:.2f} × its speed; in FP8 {shares[1]:.2f} ×",
    )
    return figures
