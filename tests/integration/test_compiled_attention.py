"""What the GPU compiler makes of a train step on packed rows: our own attention kernel, whole."""

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

NUM_LAYERS, ROWS, LENGTH = 3, 4, 4096


def test_packed_rows_on_four_gpus_run_our_kernels_once_per_layer_and_gather_no_keys():
    """Heads over `tensor`, rows over `fsdp`; the loop over layers saves what attention gave."""
    c = config_lib.to_config_dict(RunConfig)
    c.model.update(
        vocab_size=256, num_layers=NUM_LAYERS, d_model=64, num_heads=4, num_kv_heads=2,
        head_dim=32, d_ff=128, remat="save:attention_out", attention="pallas",
    )  # fmt: skip
    c.data.batch_size, c.data.seq_len, c.loop.num_steps = ROWS, LENGTH, 10
    c.data.packing, c.precision.recipe = "best_fit", "bfloat16"
    config = config_lib.resolve(RunConfig, c)
    assert config_program.choose_attention(config, "gpu") == ("pallas", "asked for by the config")
    mesh = make_mesh(MeshConfig(fsdp=2, tensor=2), aot.compile_only_devices("h100", 4))
    program = config_program.make_program(config, cross_entropy(config.loss), mesh, platform="gpu")
    ints, floats = (jax.ShapeDtypeStruct((ROWS, LENGTH), d) for d in (jnp.int32, jnp.float32))
    lowered = program.lower(Batch(ints, ints, floats, ints, ints), platform="cuda")
    text = aot.compile_program(lowered, triton_gemm=False).as_text() or ""
    found = hlo.read(text)
    runs: collections.Counter = collections.Counter()
    for kernel in found.kernels:
        for part in ("forward", "of_queries", "of_keys"):
            if kernel.target == "__gpu$xla.gpu.triton" and f"{part}_kernel" in kernel.op_name:
                runs[part] += kernel.times
    assert runs == dict.fromkeys(("forward", "of_queries", "of_keys"), NUM_LAYERS)
    calls = [line for line in text.splitlines() if '"__gpu$xla.gpu.triton"' in line]
    for shape in ("bf16[2,4096,2,32]", "bf16[2,4096,1,32]"):  # q, and k and v, of one device
        assert all(shape in line for line in calls)
