"""What the GPU compiler makes of a train step under `fp8_block`: our kernel, in every product."""

import collections
import math
import re

import jax
import jax.numpy as jnp
import pytest

from jaxtrain import config as config_lib
from jaxtrain import config_program
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot, hlo
from jaxtrain.run_config import RunConfig
from jaxtrain.types import Batch

pytestmark = [pytest.mark.aot, pytest.mark.slow, pytest.mark.usefixtures("gpu_compiler")]

NUM_GPUS, NUM_LAYERS, ROWS, LENGTH, WIDTH = 4, 4, 4, 128, 256
E4M3, E5M2 = "f8e4m3fn", "f8e5m2"
FORMATS = {"output": (E4M3, E4M3), "d_input": (E5M2, E4M3), "d_weight": (E4M3, E5M2)}


def compiled() -> str:
    """The train step's HLO; four attention and three feed-forward matrices of WIDTH × WIDTH."""
    c = config_lib.to_config_dict(RunConfig)
    c.model.update(
        vocab_size=256, num_layers=NUM_LAYERS, d_model=WIDTH, num_heads=4, num_kv_heads=4,
        head_dim=64, d_ff=WIDTH, attention="xla", remat="full",
    )  # fmt: skip
    c.data.batch_size, c.data.seq_len = ROWS, LENGTH
    c.loop.num_steps, c.loop.num_microbatches = 10, 2
    c.precision.recipe = "fp8_block"  # but for the first and the last layer
    config = config_lib.resolve(RunConfig, c)
    mesh = make_mesh(
        MeshConfig(data=1, fsdp=2, tensor=2), aot.compile_only_devices("h100", NUM_GPUS)
    )
    program = config_program.make_program(config, cross_entropy(config.loss), mesh, platform="gpu")
    ints, floats = (jax.ShapeDtypeStruct((ROWS, LENGTH), d) for d in (jnp.int32, jnp.float32))
    lowered = program.lower(Batch(ints, ints, floats, ints, ints), platform="cuda")
    return aot.compile_program(lowered, triton_gemm=False).as_text() or ""


def products(contents: hlo.Contents) -> dict[tuple[str, tuple[str, str]], float]:
    """FLOPs on one device by kind of product and formats of operands, [M, K] and [N, K]."""
    flops: collections.Counter = collections.Counter()
    for each in contents.kernels:
        if "block_scaled_kernel" in each.op_name:
            assert each.target == "__gpu$xla.gpu.triton"
            kind = re.findall(r":(output|d_input|d_weight)/", each.op_name)[-1]
            a, _, b, _ = each.operands
            one = 2 * math.prod(a.sizes) * b.sizes[0]
            flops[kind, (a.dtype, b.dtype)] += one * each.times
    return dict(flops)


def most_in_float32(text: str) -> int:
    """Elements of the largest float32 array in memory that comes of casting to FP8."""
    fused = set(
        re.findall(r"fusion\(.*calls=%([\w.\-]+)", text)
    )  # what is in these is in registers
    sizes, computation = [0], ""
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        computation = head.group(1) if head else computation
        found = re.match(r"\s+(?:ROOT )?%\S+ = f32\[([\d,]*)\].*op_name=\"[^\"]*:(\w+)/", line)
        if (
            found
            and computation not in fused
            and found.group(2) in FORMATS
            and "pallas_call" not in line
        ):
            sizes.append(math.prod(int(size) for size in found.group(1).split(",") if size))
    return max(sizes)


def test_all_three_products_of_every_layer_that_is_not_excluded_are_our_kernel():
    """On 2 × 2 GPUs: layers looped over and recomputed, two microbatches."""
    text = compiled()
    contents = hlo.read(text)
    one = 2 * ROWS * LENGTH * (NUM_LAYERS - 2) * WIDTH**2 / NUM_GPUS
    # What the last matrix of a layer puts out is not needed again.
    matrices = {"output": 7 + 6, "d_input": 7, "d_weight": 7}
    assert products(contents) == {
        (kind, formats): one * matrices[kind] for kind, formats in FORMATS.items()
    }
    # Weights are gathered in FP8; sums of activations over `tensor` stay split along T.
    exchanged = {(each.kind, each.dtype) for each in contents.collectives if each.num_bytes > 4096}
    assert ("all-gather", E4M3) in exchanged
    assert ("reduce-scatter", "bf16") in exchanged
    assert ("all-reduce", "bf16") not in exchanged
    # Scales are in float32, one for 128 numbers of an operand; no operand is.
    operands = (x for each in contents.kernels for x in each.operands if x.dtype in (E4M3, E5M2))
    assert 0 < most_in_float32(text) < min(math.prod(x.sizes) for x in operands) / 4
