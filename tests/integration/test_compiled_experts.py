"""What the GPU compiler makes of a train step of dropless experts: our own grouped matmul."""

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

pytestmark = [pytest.mark.aot, pytest.mark.slow, pytest.mark.usefixtures("gpu_compiler")]

NUM_LAYERS, NUM_EXPERTS, ROWS, LENGTH = 2, 8, 4, 1024
D_MODEL, EXPERT_DIM = 64, 256


def test_dropless_experts_on_four_gpus_run_our_kernels_and_no_product_with_all_experts():
    """Experts over two GPUs, their width over two; three products a layer, each with gradients."""
    c = config_lib.to_config_dict(RunConfig)
    c.model.update(
        vocab_size=256, num_layers=NUM_LAYERS, d_model=D_MODEL, num_heads=2, num_kv_heads=2,
        head_dim=32, d_ff=EXPERT_DIM, num_experts=NUM_EXPERTS, num_experts_per_token=2,
        expert_dispatch="dropless", attention="chunked",
    )  # fmt: skip
    c.data.batch_size, c.data.seq_len, c.loop.num_steps = ROWS, LENGTH, 10
    c.precision.recipe = "bfloat16"
    config = config_lib.resolve(RunConfig, c)
    mesh = make_mesh(MeshConfig(data=1, expert=2, tensor=2), aot.compile_only_devices("h100", 4))
    program = config_program.make_program(config, cross_entropy(config.loss), mesh, platform="gpu")
    ints, floats = (jax.ShapeDtypeStruct((ROWS, LENGTH), d) for d in (jnp.int32, jnp.float32))
    lowered = program.lower(Batch(ints, ints, floats, ints, ints), platform="cuda")
    found = hlo.read(aot.compile_program(lowered, triton_gemm=False).as_text() or "")
    runs: collections.Counter = collections.Counter()
    for kernel in found.kernels:
        for part in ("product", "of_matrices"):
            if kernel.target == "__gpu$xla.gpu.triton" and f"{part}_kernel" in kernel.op_name:
                runs[part] += kernel.times
    assert runs == {"product": NUM_LAYERS * 3 * 2, "of_matrices": NUM_LAYERS * 3}
    # None of XLA's own matmuls is as large as what one expert's matrices make of its GPU's tokens.
    largest = max(each.flops for each in found.matmuls)
    assert largest < 2 * (ROWS * LENGTH // 2) * D_MODEL * EXPERT_DIM
