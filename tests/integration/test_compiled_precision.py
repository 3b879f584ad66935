"""What the GPU compiler makes of the recipes: formats of every matmul, counted in FLOPs.

Counting is what proves it: XLA merges matmuls that share an operand, and multiplies in bfloat16
wherever it does not recognise an FP8 matmul, without a word.
"""

import collections

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

pytestmark = [pytest.mark.aot, pytest.mark.usefixtures("gpu_compiler")]

ROWS, LENGTH = 4, 128
E4M3, E5M2, E8M0, E2M1 = "f8e4m3fn", "f8e5m2", "f8e8m0fnu", "f4e2m1fn"


def run_config(num_layers: int, **precision) -> RunConfig:
    c = config_lib.to_config_dict(RunConfig)
    c.model.update(
        vocab_size=256, num_layers=num_layers, d_model=128, num_heads=4, num_kv_heads=2,
        head_dim=32, d_ff=256, attention="xla",
    )  # fmt: skip
    c.data.batch_size, c.data.seq_len, c.loop.num_steps = ROWS, LENGTH, 10
    c.precision.update(precision)
    return config_lib.resolve(RunConfig, c)


def block_weights(config: RunConfig) -> int:
    m = config.model
    attention = m.d_model * m.head_dim * 2 * (m.num_heads + m.num_kv_heads)
    return attention + 3 * m.d_model * m.d_ff


def lowered(config: RunConfig, target: str, mesh: MeshConfig, num_gpus: int):
    devices = aot.compile_only_devices(target, num_gpus)
    program = config_program.make_program(
        config, cross_entropy(config.loss), make_mesh(mesh, devices), platform="gpu"
    )
    ints, floats = (jax.ShapeDtypeStruct((ROWS, LENGTH), d) for d in (jnp.int32, jnp.float32))
    return program.lower(Batch(ints, ints, floats, ints, ints), platform="cuda")


def fp8_flops(contents: hlo.Contents) -> dict[tuple[str, str], float]:
    """FLOPs of cuBLAS's FP8 matmuls by the formats of their operands."""
    flops: collections.Counter = collections.Counter()
    for each in contents.matmuls:
        if each.kernel == "__cublas$lt$matmul$f8":
            flops[each.lhs.dtype, each.rhs.dtype] += each.flops * each.times
    return dict(flops)


def block_scaled_products(contents: hlo.Contents) -> dict[tuple[str, ...], int]:
    """cuDNN's block-scaled products by the formats of values and scales; their sizes are padded."""
    products: collections.Counter = collections.Counter()
    for each in contents.kernels:
        if each.target == "__cudnn$blockScaledDot":
            products[tuple(operand.dtype for operand in each.operands)] += each.times
    return dict(products)


def contents_of(config: RunConfig, target: str, mesh: dict, num_gpus: int) -> hlo.Contents:
    found = lowered(config, target, MeshConfig(**mesh), num_gpus)
    return hlo.read(aot.compile_program(found, triton_gemm=False).as_text())


NUM_MATRICES = 7  # of a block: queries, keys, values, output; gate, up, down
OUTER_EXCLUDED = 4, 2  # layers, and the quantised ones: the inner two, looped over


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "layers", "precision", "mesh"),
    [
        ("h100", OUTER_EXCLUDED, {}, {}),
        ("h100", (2, 2), {"scaling": "delayed", "exclude": ()}, {"fsdp": 2, "tensor": 2}),
        ("b200", OUTER_EXCLUDED, {"grad_rounding": "stochastic"}, {"fsdp": 2, "tensor": 2}),
    ],
)
def test_all_three_matmuls_of_every_layer_that_is_not_excluded_are_fp8(
    target, layers, precision, mesh
):
    num_layers, num_quantised = layers
    config = run_config(num_layers, recipe="fp8", **precision)
    num_gpus = 4 if mesh else 1
    contents = contents_of(config, target, mesh, num_gpus)
    one = 2 * ROWS * LENGTH * num_quantised * block_weights(config) / num_gpus
    assert fp8_flops(contents) == {
        (E4M3, E4M3): one,  # outputs
        (E5M2, E4M3): one,  # gradients of inputs
        (E4M3, E5M2): one,  # gradients of weights
    }
    if mesh:  # weights cross the wire in FP8 as well
        gathered = {each.dtype for each in contents.collectives if each.kind == "all-gather"}
        assert E4M3 in gathered


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "formats", "precision", "mesh"),
    [
        ("mxfp8", (E4M3, E4M3, E8M0, E8M0), {"grad_rounding": "stochastic"}, {}),
        ("nvfp4", (E2M1, E2M1, E4M3, E4M3), {}, {"fsdp": 2, "tensor": 2}),
    ],
)
def test_all_three_products_of_every_layer_that_is_not_excluded_are_block_scaled(
    recipe, formats, precision, mesh
):
    num_layers, num_quantised = OUTER_EXCLUDED
    config = run_config(num_layers, recipe=recipe, **precision)
    num_gpus = 4 if mesh else 1
    contents = contents_of(config, "b200", mesh, num_gpus)
    assert block_scaled_products(contents) == {formats: 3 * NUM_MATRICES * num_quantised}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_weights_are_added_up_over_the_mesh_in_the_dtype_asked_for(dtype):
    config = run_config(2, recipe="bfloat16", grad_reduce_dtype=dtype)
    contents = contents_of(config, "h100", {"fsdp": 2}, 2)
    num_bytes: collections.Counter = collections.Counter()
    for each in contents.collectives:
        if each.kind in ("reduce-scatter", "all-reduce"):
            num_bytes[each.dtype] += each.num_bytes * each.times
    m = config.model
    head = m.d_model * m.num_vocab_rows
    of_matmuls = 2 * block_weights(config) + head
    # Beside them norms, scalars and the embedding, whose gradient is no matmul: in float32.
    others = 2 * head * 4
    if dtype == "bfloat16":
        assert num_bytes["bf16"] == of_matmuls * 2
        assert num_bytes["f32"] < others
    else:
        assert set(num_bytes) <= {"f32", "u32"}
        assert of_matmuls * 4 <= num_bytes["f32"] < of_matmuls * 4 + others


@pytest.mark.parametrize(
    ("recipe", "target", "line"),
    [
        ("fp8", "a100", r"compute capability 8\.9 or more.*NVIDIA A100-SXM4-80GB \(8\.0\)"),
        ("mxfp8", "h100", r"compute capability 10\.0 or more.*NVIDIA H100 80GB HBM3 \(9\.0\)"),
        ("nvfp4", "h100", r"compute capability 10\.0 or more.*NVIDIA H100 80GB HBM3 \(9\.0\)"),
        ("fp8_block", "a100", r"compute capability 8\.9 or more.*NVIDIA A100-SXM4-80GB \(8\.0\)"),
    ],
)
def test_devices_without_the_format_are_refused_before_anything_is_lowered(recipe, target, line):
    config = run_config(2, recipe=recipe)
    with pytest.raises(ValueError, match=rf"config\.precision\.recipe='{recipe}' .*{line}"):
        lowered(config, target, MeshConfig(), 1)
