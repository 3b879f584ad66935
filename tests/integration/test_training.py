"""The real decoder and loss through the real step: meshes, accumulation, golden losses."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest

from jaxtrain import config_program
from jaxtrain.data.loader import Loader
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.optim.build import Optimizer
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from tests.runs import ROOT

GOLDEN = ROOT / "tests" / "golden" / "pretrain.json"


def make_program(config, num_devices=1, **mesh):
    devices = jax.devices()[:num_devices]
    mesh = make_mesh(dataclasses.replace(MeshConfig(), **mesh), devices)
    return config_program.make_program(config, cross_entropy(config.loss), mesh)


def train(program, config, num_steps, batch=None):
    """Metrics of every step, on the loader's batches or always on one."""
    loader, state, history = Loader(config.data, config.loop.seed), program.init(), []
    for step in range(num_steps):
        rows = loader.batch(step) if batch is None else batch
        state, metrics = program.train_step(state, {}, program.put(rows, len(rows.inputs)))
        history.append(jax.device_get(metrics))
    return state, history


def sgd(axes):
    """Plain gradient descent at rate 1: the update is the gradient."""
    del axes
    return Optimizer(optax.sgd(1.0), lambda count: np.float32(1.0), "sgd")


def gradients(config, zero="zero3", **mesh):
    """(loss, gradients) of the first batch, read off one step of gradient descent."""
    program = make_program(config, **mesh)
    program = dataclasses.replace(
        program, make_optimizer=sgd, sharding=zero, num_microbatches=config.loop.num_microbatches
    )
    before = jax.device_get(program.init().params)
    state, (metrics,) = train(program, config, 1)
    after = jax.device_get(state.params)
    return metrics, jax.tree.map(lambda a, b: a.astype(np.float64) - b, before, after)


def assert_same_gradients(found, expected, rtol):
    """Leaf by leaf, relative to the leaf's largest gradient."""

    def compare(path, a, b):
        # An update is read off parameters of size ~1, whose float32 rounding is the floor.
        atol = rtol * np.abs(b).max() + 2e-7
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(compare, found, expected)


@pytest.fixture(scope="module")
def wide(tiny_config):
    """Eight heads, so that every axis can be 8; dropout and z-loss on."""
    return tiny_config(
        {"model.num_heads": 8, "model.num_kv_heads": 8, "model.head_dim": 4, "loss.z_loss": 0.1}
    )


@pytest.fixture(scope="module")
def on_one_device(wide):
    return gradients(wide)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [
        {"data": 8},
        {"data": 1, "fsdp": 8},
        {"data": 1, "tensor": 8},
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"data": 2, "fsdp": 4, "zero": "zero1"},
        {"data": 2, "fsdp": 4, "zero": "zero2"},
    ],
    ids=str,
)
def test_loss_and_gradients_are_the_same_on_every_mesh(wide, on_one_device, mesh):
    metrics, grads = gradients(wide, num_devices=8, **mesh)
    for name in ("loss", "nll", "z_loss", "grad_norm"):
        assert metrics[name] == pytest.approx(on_one_device[0][name], rel=1e-5)
    assert_same_gradients(grads, on_one_device[1], rtol=1e-5)


@pytest.mark.parametrize("num", [2, 4])
def test_accumulation_changes_neither_main_nor_auxiliary_loss(tiny_config, num):
    config = tiny_config({"model.dropout": 0.0, "loss.z_loss": 0.1})
    whole, grads = gradients(config)
    loop = dataclasses.replace(config.loop, num_microbatches=num)
    metrics, accumulated = gradients(dataclasses.replace(config, loop=loop))
    for name in ("loss", "nll", "z_loss"):
        assert metrics[name] == pytest.approx(whole[name], rel=1e-6)
    assert metrics["loss"] == pytest.approx(metrics["nll"] + 0.1 * metrics["z_loss"], rel=1e-6)
    assert metrics["nll"] > 0
    assert_same_gradients(accumulated, grads, rtol=1e-6)


@pytest.mark.parametrize("name", ["decoder", "encoder", "muon"])
def test_ten_step_losses_are_golden(tiny_config, name):
    """A change that claims no numeric effect leaves these as they are."""
    overrides = {
        "decoder": {},
        "encoder": {"data.objective": "masked_lm", "model.bidirectional": "true"},
        "muon": {"optim.name": "muon"},
    }[name]
    config = tiny_config(overrides)
    _, history = train(make_program(config), config, 10)
    losses = [float(metrics["loss"]) for metrics in history]
    golden = json.loads(GOLDEN.read_text())[name]
    # Rounding differs between processors and XLA versions; 10 steps amplify it to about 1e-5.
    assert losses == pytest.approx(golden, rel=1e-4)


@pytest.mark.parametrize("recipe", ["float32", "bfloat16"])
def test_one_batch_is_learnt_by_heart(tiny_config, recipe):
    config = tiny_config(
        {"precision.recipe": recipe, "model.dropout": 0.0, "loop.num_steps": 150,
         "optim.weight_decay": 0.0}
    )  # fmt: skip
    batch = Loader(config.data, 0).batch(0)
    _, history = train(make_program(config), config, 150, batch)
    assert history[0]["loss"] > 3.5  # about ln 64
    # What stays is the first id after BOS, which nothing foretells: less than 0.1 nats a token.
    assert history[-1]["loss"] < 0.1


def test_masked_lm_learns_to_fill_gaps_through_the_same_step(tiny_config):
    config = tiny_config(
        {"data.objective": "masked_lm", "model.bidirectional": "true", "loop.num_steps": 200}
    )
    _, history = train(make_program(config), config, 200)
    first, last = (np.mean([m["loss"] for m in part]) for part in (history[:5], history[-20:]))
    assert first > 3.8
    assert last < 0.6 * first


def test_dropout_differs_from_step_to_step_and_is_off_in_evaluation(tiny_config):
    config = tiny_config({"model.dropout": 0.5, "optim.lr": 1e-30, "optim.warmup_steps": 0})
    program = make_program(config)
    batch = Loader(config.data, 0).batch(0)
    _, history = train(program, config, 4, batch)
    losses = [float(metrics["loss"]) for metrics in history]
    assert len(set(losses)) == 4  # the weights do not move, only the masks change
    without = make_program(tiny_config({"model.dropout": 0.0}))
    rows = [p.eval_step(p.init(), {}, p.put(batch, 8)).loss_sum for p in (program, without)]
    assert float(rows[0]) == float(rows[1])


def test_z_loss_config_reaches_the_step(tiny_config):
    config = tiny_config()
    with_z_loss = dataclasses.replace(config, loss=XentConfig(z_loss=1.0))
    plain, heavy = (train(make_program(each), each, 1)[1][0] for each in (config, with_z_loss))
    assert heavy["loss"] == pytest.approx(plain["nll"] + heavy["z_loss"], rel=1e-5)
