"""A model of experts through the real step: balance, its state, and accumulation."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxtrain import stored_weights
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import flatten, nest
from jaxtrain.optim.build import Optimizer, build
from jaxtrain.optim.config import OptimConfig
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import Constrain
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.starting_point import StartingPoint
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from jaxtrain.types import Batch
from tests.stage_steps import quick_train_step
from tests.train import stand_in

CONFIG = ModelConfig(
    vocab_size=32, num_layers=1, d_model=8, num_heads=2, num_kv_heads=2, head_dim=4, d_ff=12,
    num_experts=4, num_experts_per_token=2, d_ff_expert=6,
    router_scores="sigmoid", router_selection_bias=True, router_bias_rate=0.125,
    router_balance_weight=0.1, router_balance_over="batch", router_z_weight=0.01,
)  # fmt: skip
BIAS = "blocks.ffn.router.selection_bias_E"


def sgd(axes):
    """The update is the gradient."""
    del axes
    return Optimizer(optax.sgd(1.0), lambda count: np.float32(1.0), "sgd")


@functools.cache
def program(make_optimizer=sgd, **fields):
    """A program of the model; fields of the config and of `Program` by name."""
    names = {field.name for field in dataclasses.fields(ModelConfig)} & fields.keys()
    config = dataclasses.replace(CONFIG, **{name: fields.pop(name) for name in names})
    constrain = Constrain(fields["mesh"]) if "mesh" in fields else unconstrained

    def make_model(rng):
        return Decoder(
            config, rngs=nnx.Rngs(rng), recipe=get_recipe("float32"), constrain=constrain
        )

    return stand_in.program(
        make_model=make_model,
        loss=cross_entropy(XentConfig()),
        make_optimizer=make_optimizer,
        **fields,
    )


def unconstrained(x, letters):
    del letters
    return x


def batch(seed=0, rows=8):
    """Rows of different lengths: filler is no token and has no weight."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 32, (rows, 11)).astype(np.int32)
    inside = (np.arange(10)[None] < rng.integers(3, 11, (rows, 1))).astype(np.int32)
    positions = np.broadcast_to(np.arange(10, dtype=np.int32), (rows, 10)) * inside
    return Batch(ids[:, :-1], ids[:, 1:], inside.astype(np.float32), positions, inside)


def test_accumulation_changes_neither_losses_nor_gradients_nor_the_bias():
    """PRE-04, and loads counted once."""
    (whole, metrics), (parts, of_parts) = (
        stand_in.run(program(num_microbatches=num), [batch()]) for num in (1, 4)
    )
    for name in ("loss", "auxiliary_loss", "total_loss", "grad_norm"):
        assert of_parts[0][name] == pytest.approx(metrics[0][name], rel=1e-5)
    assert metrics[0]["auxiliary_loss"] > 0
    assert metrics[0]["loss"] == pytest.approx(metrics[0]["nll"])
    np.testing.assert_allclose(of_parts[0]["moe/load_max"], metrics[0]["moe/load_max"], rtol=1e-6)
    bias = flatten(jax.device_get(whole.nontrained))
    assert bias.keys() == {BIAS}
    assert set(np.abs(bias[BIAS]).ravel()) <= {0, 0.125}
    assert np.abs(bias[BIAS]).max() == 0.125
    np.testing.assert_array_equal(flatten(parts.nontrained)[BIAS], bias[BIAS])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        jax.device_get(whole.params),
        jax.device_get(parts.params),
    )


def updated(program, rows):
    """(gradients, bias, metrics, compiled program) of one update of random parameters."""
    rng = np.random.default_rng(1)
    flat = flatten(jax.tree.map(lambda leaf: leaf.shape, program.abstract_state.params))
    params = {
        path: rng.normal(path.endswith("scale"), 0.3, shape).astype(np.float32)
        for path, shape in flat.items()
    }
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), program.abstract_state)
    state = jax.tree.map(
        lambda x, like: jax.device_put(x, like.sharding),
        state._replace(params=nest(params)),
        program.abstract_state,
    )
    put = program.put(batch(rows=rows), rows)
    compiled = quick_train_step(program).lower(state, {}, put).compile()
    state, metrics = jax.device_get(compiled(state, {}, put))
    grads = {path: params[path] - leaf for path, leaf in flatten(state.params).items()}
    return grads, flatten(state.nontrained)[BIAS], metrics, compiled.as_text()


@pytest.fixture(scope="module")
def dense_alone():
    """One device, every expert on every token, the whole batch at once."""
    return updated(program(expert_dispatch="dense"), 16)


@pytest.mark.parametrize(
    ("kind", "mesh"),
    [
        ("dropless", {"data": 2, "fsdp": 2, "expert": 2}),
        ("dropless", {"data": 2, "fsdp": 2, "tensor": 2}),
        ("capacity", {"data": 2, "expert": 4}),
        ("capacity", {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2}),
    ],
    ids=str,
)
def test_an_update_on_a_mesh_is_that_of_dense_experts_on_one_device(dense_alone, kind, mesh):
    """Balance and bias too, which are of the whole batch; two microbatches."""
    made = program(
        mesh=make_mesh(MeshConfig(**mesh)), expert_dispatch=kind, num_microbatches=2,
        expert_capacity_factor=2.0,  # a place for every token
    )  # fmt: skip
    grads, bias, metrics, text = updated(made, 16)
    expected_grads, expected_bias, expected, _ = dense_alone
    assert ("/all_to_all" in text) == ("expert" in mesh)  # of ours; XLA may have others
    for name in ("loss", "auxiliary_loss", "total_loss", "grad_norm"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-5)
    np.testing.assert_allclose(metrics["moe/load_max"], expected["moe/load_max"], rtol=1e-6)
    assert not np.any(metrics.get("moe/dropped_frac", 0))
    assert np.abs(expected_bias).max() == 0.125
    np.testing.assert_array_equal(bias, expected_bias)
    assert grads.keys() == expected_grads.keys()
    for path, grad in expected_grads.items():
        assert np.abs(grad).max() > 0, path
        np.testing.assert_allclose(grads[path], grad, atol=1e-5, err_msg=path)


def test_the_bias_is_none_of_the_optimizers_resumes_to_the_bit_and_stays_in_a_skipped_step(
    tmp_path,
):
    def decaying(axes):
        everything = OptimConfig(
            lr=0.05, weight_decay=0.5, weight_decay_groups=("matrix", "embedding", "vector")
        )
        return build(everything, 20, axes, 80)

    made = program(decaying)
    assert BIAS not in flatten(made.axes)
    assert BIAS not in flatten(made.abstract_state.params)
    batches = [batch(seed) for seed in range(4)]
    straight, _ = stand_in.run(made, batches)
    state, _ = stand_in.run(made, batches[:2])
    with Checkpoints(tmp_path, CheckpointConfig(save_every=1)) as checkpoints:
        checkpoints.save(2, state, {})
        checkpoints.wait()
        restored = checkpoints.restore(2, made.abstract_state)
    bias = flatten(jax.device_get(restored.nontrained))[BIAS]
    assert set(bias.ravel()) <= {-0.25, -0.125, 0, 0.125, 0.25}  # no decay moved it
    resumed, _ = stand_in.run(made, batches[2:], restored)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(straight), jax.device_get(resumed))
    before = flatten(jax.device_get(resumed.nontrained))[BIAS]
    spoilt = batches[0]._replace(loss_weights=np.full_like(batches[0].loss_weights, np.nan))
    skipped, _ = stand_in.run(made, [spoilt], resumed)
    np.testing.assert_array_equal(flatten(skipped.nontrained)[BIAS], before)


def test_a_bias_that_has_moved_is_a_weight_of_the_stored_model(tmp_path):
    """Export, generation and another run's start read it beside the trained ones."""
    made = program(num_microbatches=1)
    state, _ = stand_in.run(made, [batch()])
    with Checkpoints(tmp_path, CheckpointConfig(save_every=1)) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
    weights = stored_weights.OfCheckpoint(tmp_path, 1)
    moved = flatten(jax.device_get(state.nontrained))[BIAS]
    assert np.abs(moved).max() > 0
    stored = flatten(stored_weights.load(weights, made.abstract_weights, made.model.axes))
    np.testing.assert_array_equal(stored[BIAS], moved)
    assert stored.keys() == flatten(made.model.params).keys()
    started = StartingPoint("from it", weights=weights).load(made)
    for part in ("params", "nontrained"):
        jax.tree.map(
            np.testing.assert_array_equal,
            jax.device_get(getattr(started, part)),
            jax.device_get(getattr(state, part)),
        )
