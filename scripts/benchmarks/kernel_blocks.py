"""Times other block sizes for the kernels in jaxtrain/kernels than their tables have. Needs a GPU.

    python scripts/benchmarks/kernel_blocks.py attention [--head_dim 128] [--length 8192] [--rows 1]
    python scripts/benchmarks/kernel_blocks.py grouped [--width 2048] [--expert_dim 1408]
    python scripts/benchmarks/kernel_blocks.py block_scaled [--width 4096] [--d_ff 14336]

One kernel after the other: all candidates for it, with the best found so far of the others, timed
as output and gradients together (median of 10 runs). What does not compile, for want of shared
memory or registers, is passed over and counted. Prints the entry for jaxtrain/kernels/blocks.py,
its time as a fraction of the present entry's and of what it stands in for: chunked attention, or
products in bfloat16 (of block_scaled, whose operands are in FP8 from the start).
"""

import argparse
import dataclasses
import functools
import itertools
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp

from jaxtrain.kernels import block_scaled_matmul, blocks, flash_attention, grouped_matmul
from jaxtrain.models import chunked_attention

NUM_RUNS = 10
NUM_DOCUMENTS = 8  # of a row
NUM_HEADS, NUM_KV_HEADS = 32, 8
NUM_GROUPS, NUM_BLOCKS = 16, 256


def main() -> None:
    """Searches and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernel", choices=("attention", "grouped", "block_scaled"))
    parser.add_argument("--rows", type=int, default=1, help="rows of the batch")
    parser.add_argument("--length", type=int, default=8192, help="tokens of a row")
    parser.add_argument("--head_dim", type=int, default=128)
    parser.add_argument("--width", type=int, default=2048, help="d_model")
    parser.add_argument("--expert_dim", type=int, default=1408)
    parser.add_argument("--d_ff", type=int, default=14336)
    options = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu":
        sys.exit(f"kernel_blocks.py times kernels on a GPU, and here is a {device.device_kind}.")
    print(f"{device.device_kind}: the table's {blocks.generation(device)!r}")
    present: Any
    if options.kernel == "attention":
        present = blocks.flash_attention(device, options.head_dim, 2)
        of_blocks, chunked = attention(options.rows, options.length, options.head_dim)
        best, secs = search(of_blocks, present, ("forward", "of_queries", "of_keys"))
        print(f"{secs / seconds(chunked):.2f} × the time of chunked attention")
    elif options.kernel == "block_scaled":
        present = block_scaled_matmul.Spec(blocks.block_scaled_matmul(device))
        num_tokens = options.rows * options.length
        of_blocks, in_bfloat16 = products(num_tokens, options.width, options.d_ff)
        best, secs = search(of_blocks, present, ("block",))
        print(f"{secs / seconds(in_bfloat16):.2f} × the time of bfloat16")
    else:
        present = blocks.grouped_matmul(device)
        of_blocks = experts(options.width, options.expert_dim, present.rows)
        best, secs = search(of_blocks, present, ("product", "of_matrices"))
    print(f"{best}\n{secs / seconds(of_blocks(present)):.2f} × the time of the present {present}")


def search(of_blocks: Callable[[Any], Callable], present: Any, kernels: tuple[str, ...]):
    """(best blocks, their seconds), varying one kernel's block at a time."""
    best, least = present, seconds(of_blocks(present))
    for kernel in kernels:
        num_failed = 0
        for block in candidates():
            tried = dataclasses.replace(best, **{kernel: block})
            try:
                taken = seconds(of_blocks(tried))
            except jax.errors.JaxRuntimeError:
                num_failed += 1
                continue
            if taken < least:
                best, least = tried, taken
                print(f"{kernel}: {block} {1e3 * taken:.3f} ms", flush=True)
        print(f"{kernel}: {num_failed} candidates do not fit", flush=True)
    return best, least


def candidates() -> Iterator[blocks.Block]:
    """Blocks that such kernels usually have."""
    for rows, cols, warps, stages in itertools.product(
        (32, 64, 128), (32, 64, 128), (4, 8), (2, 3, 4)
    ):
        yield blocks.Block(rows, cols, warps, stages)


def attention(num_rows: int, length: int, head_dim: int):
    """(A function of blocks, and chunked attention) that compute output and gradients."""
    q, k, v, do = (
        jax.random.normal(jax.random.key(i), (num_rows, length, n, head_dim), jnp.bfloat16)
        for i, n in enumerate((NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS, NUM_HEADS))
    )
    ids = jnp.broadcast_to(jnp.arange(length) * NUM_DOCUMENTS // length + 1, (num_rows, length))

    def all_of(attend: Callable, spec: Any) -> Callable:
        def run(q, k, v, do):
            out, pull = jax.vjp(lambda q, k, v: attend(spec, q, k, v, ids), q, k, v)
            return out, *pull(do)

        return functools.partial(jax.jit(run), q, k, v, do)

    def of_blocks(sizes: blocks.FlashBlocks) -> Callable:
        spec = flash_attention.Spec(True, None, None, head_dim**-0.5, sizes)
        return all_of(flash_attention.attend, spec)

    spec = chunked_attention.Spec(True, None, None, head_dim**-0.5, block=512)
    return of_blocks, all_of(chunked_attention.attend, spec)


def experts(width: int, expert_dim: int, rows: int):
    """A function of blocks that computes a product and its gradients; groups are equally large."""
    x = jax.random.normal(jax.random.key(0), (NUM_BLOCKS, rows, width), jnp.bfloat16)
    w = jax.random.normal(jax.random.key(1), (NUM_GROUPS, width, expert_dim), jnp.bfloat16)
    d_out = jax.random.normal(jax.random.key(2), (NUM_BLOCKS, rows, expert_dim), jnp.bfloat16)
    group = jnp.arange(NUM_BLOCKS, dtype=jnp.int32) * NUM_GROUPS // NUM_BLOCKS

    def of_blocks(sizes: blocks.GroupedBlocks) -> Callable:
        spec = grouped_matmul.Spec(sizes, has_fp8=False)
        used = jnp.int32(NUM_BLOCKS)

        def run(x, w, d_out):
            times = functools.partial(
                grouped_matmul.product, spec, group=group, num_used=used, dtype=x.dtype
            )
            of_matrices = grouped_matmul.of_matrices(
                spec, x, d_out, NUM_GROUPS, group, used, w.dtype
            )
            return times(x, w), times(d_out, w, transposed=True), of_matrices

        return functools.partial(jax.jit(run), x, w, d_out)

    return of_blocks


def products(num_tokens: int, width: int, d_ff: int):
    """(A function of blocks, and bfloat16) that compute an output and both gradients."""
    tile, e4m3, e5m2 = block_scaled_matmul.TILE, jnp.float8_e4m3fn, jnp.float8_e5m2
    shapes = (num_tokens, width, d_ff), (num_tokens, d_ff, width), (width, num_tokens, d_ff)
    operands, in_bfloat16 = [], []
    for (m, k, n), formats, rows in zip(
        shapes, ((e4m3, e4m3), (e5m2, e4m3), (e4m3, e5m2)), (tile, tile, 1), strict=True
    ):
        a, b = (jax.random.normal(jax.random.key(i), (s, k)) for i, s in enumerate((m, n)))
        scale_a, scale_b = jnp.ones((m, k // tile)), jnp.ones((n // rows, k // tile))
        operands.append((a.astype(formats[0]), scale_a, b.astype(formats[1]), scale_b))
        in_bfloat16.append((a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)))

    def of_blocks(spec: block_scaled_matmul.Spec) -> Callable:
        multiply = functools.partial(
            block_scaled_matmul.block_scaled_matmul, spec, dtype=jnp.bfloat16
        )
        return functools.partial(jax.jit(lambda all: [multiply(*one) for one in all]), operands)

    transposed = jax.jit(lambda all: [jnp.einsum("mk,nk->mn", a, b) for a, b in all])
    return of_blocks, functools.partial(transposed, in_bfloat16)


def seconds(run: Callable) -> float:
    """Median of a run, after one that compiles."""
    jax.block_until_ready(run())
    taken = []
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
