import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.kernels.fp8_dot import fp8_dot
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot

E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
NAMES = {E4M3: "e4m3", E5M2: "e5m2"}
PAIRS = [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)]


def product(lhs, rhs):
    def kernel(lhs, rhs, out):
        out[...] = fp8_dot(lhs[...], rhs[...].T)

    shape = jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[0]), jnp.float32)
    params = pltriton.CompilerParams(num_warps=4, num_stages=1)
    return pl.pallas_call(kernel, out_shape=shape, compiler_params=params)(lhs, rhs)


@pytest.mark.aot
@pytest.mark.usefixtures("gpu_compiler")
def test_tensor_cores_of_an_h100_multiply_any_two_formats_and_sum_all_terms_of_a_block(tmp_path):
    """In the machine code. Of `jnp.dot` Triton makes products in float16."""
    devices = aot.compile_only_devices("h100", 1)
    whole = NamedSharding(make_mesh(MeshConfig(), devices), PartitionSpec())
    operands = [
        [jax.ShapeDtypeStruct((64, 128), dtype, sharding=whole) for dtype in pair] for pair in PAIRS
    ]
    products = jax.jit(lambda pairs: [product(*pair) for pair in pairs])
    lowered = products.trace(operands).lower(lowering_platforms=("cuda",))
    lowered.compile(compiler_options={"xla_gpu_autotune_level": "0", "xla_dump_to": str(tmp_path)})
    code = "".join(path.read_text() for path in tmp_path.glob("*.ptx"))
    products_found = re.findall(r"\bw?g?mma\S*\.m\d+n\d+(k\d+)\.(\w+)\.(\w+)\.(\w+)", code)
    expected = [("k32", "f32", NAMES[a], NAMES[b]) for a, b in PAIRS]
    assert sorted(products_found) == sorted(expected * 4)  # 4 × 32 terms of each
    # Were sums promoted to float32 in between, there would be additions.
    assert not re.findall(r"\badd\S*f32\b", code)
