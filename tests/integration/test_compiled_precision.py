"""What the GPU compiler makes of the recipes: formats of every matmul, counted in FLOPs.

Counting is what proves it: XLA merges matmuls that share an operand, and multiplies in bfloat16
wherever it does not recognise an FP8 matmul, without a word.
"""

import collections

import jax
import jax.numpy as jnp
import pytest

from jaxtrain import config as config_lib
from jaxtrain import stage
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot, hlo
from jaxtrain.precision import tiled
from jaxtrain.run_config import RunConfig
from jaxtrain.types import Batch

pytestmark = [pytest.mark.aot, pytest.mark.usefixtures("gpu_compiler")]

ROWS, LENGTH = 4, 128
E4M3, E5M2 = "f8e4m3fn", "f8e5m2"


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
    program = stage.make_program(
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_layers", "num_quantised", "precision", "mesh"),
    [
        (4, 2, {}, {}),  # the first and the last are excluded, the others looped over
        (2, 2, {"scaling": "delayed", "exclude": ()}, {"fsdp": 2, "tensor": 2}),
    ],
)
def test_all_three_matmuls_of_every_layer_that_is_not_excluded_are_fp8(
    num_layers, num_quantised, precision, mesh
):
    config = run_config(num_layers, recipe="fp8", **precision)
    num_gpus = 4 if mesh else 1
    compiled = aot.compile_program(
        lowered(config, "h100", MeshConfig(**mesh), num_gpus), triton_gemm=False
    )
    contents = hlo.read(compiled.as_text())
    one = 2 * ROWS * LENGTH * num_quantised * block_weights(config) / num_gpus
    assert fp8_flops(contents) == {
        (E4M3, E4M3): one,  # outputs
        (E5M2, E4M3): one,  # gradients of inputs
        (E4M3, E5M2): one,  # gradients of weights
    }
    if mesh:  # weights cross the wire in FP8 as well
        gathered = {each.dtype for each in contents.collectives if each.kind == "all-gather"}
        assert E4M3 in gathered


@pytest.mark.parametrize(
    ("recipe", "target", "line"),
    [
        ("fp8", "a100", r"compute capability 8\.9 or more.*NVIDIA A100-SXM4-80GB \(8\.0\)"),
        ("nvfp4", "h100", r"compute capability 10\.0 or more.*NVIDIA H100 80GB HBM3 \(9\.0\)"),
        ("fp8_block", "a100", r"compute capability 8\.9 or more.*NVIDIA A100-SXM4-80GB \(8\.0\)"),
    ],
)
def test_devices_without_the_format_are_refused_before_anything_is_lowered(recipe, target, line):
    config = run_config(2, recipe=recipe)
    with pytest.raises(ValueError, match=rf"config\.precision\.recipe='{recipe}' .*{line}"):
        lowered(config, target, MeshConfig(), 1)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_block_scaled_products_are_blackwells(name):
    """Output and both gradients of one product, for one B200."""
    mesh = make_mesh(MeshConfig(), aot.compile_only_devices("b200", 1))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    x, w, g = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=where)
        for shape in ((2, 256, 256), (256, 512), (2, 256, 512))
    )
    spec = tiled.Spec(name, 1, emulate=False, grad_reduce_dtype=jnp.float32, name="w")

    def all_three(x, w, g):
        y, pull = jax.vjp(lambda x, w: tiled.product(spec, x, w), x, w)
        return y, *pull(g)

    compiled = aot.compile_program(
        jax.jit(all_three).trace(x, w, g).lower(lowering_platforms=("cuda",))
    )
    targets = [each.target for each in hlo.read(compiled.as_text()).kernels]
    assert targets.count("__cudnn$blockScaledDot") == 3
