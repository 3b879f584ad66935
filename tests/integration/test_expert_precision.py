"""Routed experts in FP8 through the real step: what a history takes in, and what is compiled."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import config as config_lib
from jaxtrain import config_program
from jaxtrain.data.loader import Loader
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot, hlo
from jaxtrain.precision.quantization import TENSORS
from jaxtrain.run_config import RunConfig
from jaxtrain.types import Batch
from tests.stage_steps import quick_train_step

EXPERTS = {
    "model.num_layers": 1, "model.num_experts": 4, "model.num_experts_per_token": 2,
    "model.d_ff_expert": 16, "model.expert_dispatch": "dropless", "model.dropout": 0.0,
    "precision.recipe": "fp8", "precision.scaling": "delayed", "precision.exclude": "()",
    "precision.emulate": "true",
}  # fmt: skip
MATRICES = ("w_down_EFD", "w_gate_EDF", "w_up_EDF")  # the last of a block's weights by name
E4M3, E5M2 = "f8e4m3fn", "f8e5m2"


def updates(config, batches, mesh):
    """(largest of each matrix, latest of the histories [matrix, tensor]) of first updates."""
    num_devices = mesh.data * mesh.expert * mesh.tensor
    on = make_mesh(mesh, jax.devices()[:num_devices])
    program = config_program.make_program(config, cross_entropy(config.loss), on)
    step = quick_train_step(program)
    for batch in batches:
        state = program.init()
        weights = jax.device_get(state.params["blocks"]["ffn"])
        state, _ = step(state, {}, program.put(batch, len(batch.inputs)))
        history = np.asarray(state.nontrained["blocks"]["scaling"]["history"])
        largest = [np.abs(weights[name]).max() for name in MATRICES]
        yield largest, history[0, -len(MATRICES) :, :, 0]


@pytest.mark.slow
def test_history_of_experts_takes_in_the_largest_of_all_microbatches_and_devices(tiny_config):
    """Two microbatches on four devices, against each alone on one."""
    config = tiny_config(EXPERTS)
    batch = Loader(config.data, 0).batch(0)
    halves = [jax.tree.map(lambda x, j=j: x[j::2], batch) for j in range(2)]
    alone = np.stack([seen for _, seen in updates(config, halves, MeshConfig(data=1))])
    config = tiny_config({**EXPERTS, "loop.num_microbatches": 2})
    mesh = MeshConfig(data=1, expert=2, tensor=2)
    ((largest, found),) = updates(config, [batch], mesh)
    assert (alone > 0).all()
    # Sums in another order may round to the next bfloat16 number, and that to another FP8 one.
    for tensor, rtol in zip(TENSORS, (2.0**-6, 2.0**-8, 2.0**-3), strict=True):
        index = TENSORS.index(tensor)
        expected = alone.max(axis=0)[:, index]
        np.testing.assert_allclose(found[:, index], expected, rtol=rtol, err_msg=tensor)
    np.testing.assert_allclose(found[:, TENSORS.index("weight")], largest, rtol=2.0**-8)


NUM_LAYERS, D_MODEL, EXPERT_DIM, NUM_EXPERTS, ROWS, LENGTH = 2, 128, 256, 8, 4, 256


def compiled(kind, mesh):
    """The contents of a train step of a model all of whose matrices are in FP8, for H100s."""
    c = config_lib.to_config_dict(RunConfig)
    c.model.update(
        vocab_size=256, num_layers=NUM_LAYERS, d_model=D_MODEL, num_heads=2, num_kv_heads=2,
        head_dim=64, d_ff=EXPERT_DIM, num_experts=NUM_EXPERTS, num_experts_per_token=2,
        expert_capacity_factor=1.0, expert_dispatch=kind, attention="chunked",
    )  # fmt: skip
    c.data.batch_size, c.data.seq_len, c.loop.num_steps = ROWS, LENGTH, 10
    c.precision.recipe, c.precision.exclude = "fp8", ()
    config = config_lib.resolve(RunConfig, c)
    devices = aot.compile_only_devices("h100", mesh.data * mesh.expert * mesh.tensor)
    program = config_program.make_program(
        config, cross_entropy(config.loss), make_mesh(mesh, devices), platform="gpu"
    )
    ints, floats = (jax.ShapeDtypeStruct((ROWS, LENGTH), d) for d in (jnp.int32, jnp.float32))
    lowered = program.lower(Batch(ints, ints, floats, ints, ints), platform="cuda")
    return hlo.read(aot.compile_program(lowered, triton_gemm=False).as_text() or "")


def is_of_experts(op_name):
    return any(f"ffn.{name}:" in op_name for name in MATRICES)


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.usefixtures("gpu_compiler")
def test_experts_of_a_capacity_are_batched_fp8_matmuls_of_cublas():
    flops: collections.Counter = collections.Counter()
    for each in compiled("capacity", MeshConfig(data=1)).matmuls:
        if is_of_experts(each.op_name):
            assert each.kernel == "__cublas$lt$matmul$f8"
            flops[each.lhs.dtype, each.rhs.dtype] += each.flops * each.times
    one = NUM_LAYERS * 3 * 2 * (ROWS * LENGTH * 2) * D_MODEL * EXPERT_DIM  # two experts a token
    assert flops == {(E4M3, E4M3): one, (E5M2, E4M3): one, (E4M3, E5M2): one}


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.usefixtures("gpu_compiler")
def test_dropless_experts_are_our_kernel_on_fp8_operands_which_cross_the_wire_as_such():
    found = compiled("dropless", MeshConfig(data=1, expert=2, tensor=2))
    assert not [each for each in found.matmuls if is_of_experts(each.op_name)]
    runs: collections.Counter = collections.Counter()
    for kernel in found.kernels:
        if kernel.target == "__gpu$xla.gpu.triton" and is_of_experts(kernel.op_name):
            runs[tuple(each.dtype for each in kernel.operands if each.dtype != "s32")] += (
                kernel.times
            )
    each_matrix = NUM_LAYERS * len(MATRICES)
    assert runs == {(E4M3, E4M3): each_matrix, (E5M2, E4M3): each_matrix, (E4M3, E5M2): each_matrix}
    sent = collections.Counter()
    for each in found.collectives:
        if each.kind == "all-to-all" and each.dtype != "s32":
            sent[each.dtype] += each.num_bytes * each.times
    # Tokens there as bytes; results back, and gradients of both, in bfloat16.
    assert sent["bf16"] == 3 * 2 * sent["u8"]
