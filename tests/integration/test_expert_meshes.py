"""A model of experts and latent attention on a mesh: the loss and gradients of one device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import split
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import TABLES, Constrain, batch_sharding, named_shardings
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.types import Batch

CONFIG = ModelConfig(
    vocab_size=48, num_layers=3, d_model=16, num_heads=4, num_kv_heads=4, head_dim=12, d_ff=24,
    kv_latent_dim=8, q_latent_dim=6, rope_head_dim=4, rope_interleaved=True,
    num_experts=4, num_experts_per_token=2, d_ff_expert=8, num_shared_experts=1,
    num_dense_layers=1, router_scores="sigmoid", router_selection_bias=True,
)  # fmt: skip
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_rng = np.random.default_rng(0)
IDS = _rng.integers(0, 48, (8, 13)).astype(np.int32)
BATCH = Batch(
    IDS[:, :-1],
    IDS[:, 1:],
    np.ones((8, 12), np.float32),
    np.tile(np.r_[0:7, 0:5].astype(np.int32), (8, 1)),
    np.tile(np.r_[[1] * 7, [2] * 5].astype(np.int32), (8, 1)),
)


def loss_and_grads(shape, kind="dense"):
    num_devices = shape.data * shape.fsdp * shape.expert * shape.tensor
    mesh = make_mesh(shape, jax.devices()[:num_devices])
    config = dataclasses.replace(CONFIG, expert_dispatch=kind, remat="full", scan_unroll=1)
    recipe = get_recipe("float32")

    def make():
        return Decoder(config, rngs=nnx.Rngs(0), recipe=recipe, constrain=Constrain(mesh))

    parts = split(nnx.eval_shape(make))
    where = named_shardings(parts.axes, TABLES["zero3"].params, mesh)
    draws = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf, at: jax.device_put(draws.normal(0, 0.4, leaf.shape).astype(np.float32), at),
        parts.params,
        where,
    )
    loss = cross_entropy(XentConfig())

    def total(params, batch):
        return loss(parts.bind(params, {}), {}, batch, None).loss_sum / BATCH.targets.size

    run = jax.jit(jax.value_and_grad(total), out_shardings=(None, where), compiler_options=QUICK)
    return run(params, jax.device_put(BATCH, batch_sharding(mesh)))


@pytest.fixture(scope="module")
def alone():
    """Of one device, where every expert computes every token."""
    return loss_and_grads(MeshConfig(data=1))


@pytest.mark.parametrize(
    ("kind", "shape", "shard"),
    [  # shard: L, E / expert, D / fsdp, F / tensor
        ("dense", MeshConfig(data=2, fsdp=2, tensor=2), (2, 4, 8, 4)),
        ("dropless", MeshConfig(data=1, fsdp=2, expert=2, tensor=2), (2, 2, 8, 4)),
    ],
)
def test_loss_and_gradients_are_those_of_one_device(alone, kind, shape, shard):
    spread = loss_and_grads(shape, kind)
    np.testing.assert_allclose(spread[0], alone[0], rtol=1e-5)
    experts = spread[1]["blocks"]["ffn"]["w_gate_EDF"]
    assert experts.sharding.shard_shape(experts.shape) == shard

    def close(got, want):
        np.testing.assert_allclose(got, want, atol=1e-5 * max(1, float(jnp.abs(want).max())))

    jax.tree.map(close, spread[1], alone[1])
