"""Losses of further tokens on hand-made documents, against one document and depth at a time."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.losses.mtp import ahead
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import flatten, nest, split
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import Constrain
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.train.program import Program
from jaxtrain.types import Batch
from tests.models.filled import quick
from tests.stage_steps import quick_train_step, sgd

V, LENGTH = 24, 12
CONFIG = ModelConfig(
    vocab_size=V, num_layers=1, d_model=16, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=24,
    num_mtp_layers=2, mtp_weight=0.4,
)  # fmt: skip
#: Token ids of documents, and the weight of each as a target; short ones lack depths.
LENGTHS = (7, 5, 2, 9, 1, 6)
_RNG = np.random.default_rng(0)
DOCUMENTS = [_RNG.integers(0, V, length + 1) for length in LENGTHS]
WEIGHTS = [_RNG.choice([0.0, 0.5, 2.0], length, p=[0.2, 0.4, 0.4]) for length in LENGTHS]


def pack(rows):
    """A batch whose rows hold these documents, one behind the other, and filler."""
    batch = Batch(*(np.zeros((len(rows), LENGTH), np.int32) for _ in range(5)))
    batch = batch._replace(loss_weights=np.zeros((len(rows), LENGTH), np.float32))
    for row, numbers in enumerate(rows):
        at = 0
        for segment, number in enumerate(numbers, 1):
            ids, weights = DOCUMENTS[number], WEIGHTS[number]
            here = slice(at, at + len(weights))
            batch.inputs[row, here], batch.targets[row, here] = ids[:-1], ids[1:]
            batch.loss_weights[row, here] = weights
            # A target that does not count may be any id.
            batch.targets[row, here][weights == 0] = V - 1
            batch.positions[row, here] = np.arange(len(weights))
            batch.segment_ids[row, here] = segment
            at += len(weights)
    return batch


PACKED = pack([(0, 1), (2, 3), (), (4, 5)])
APART = pack([(number,) for number in range(len(LENGTHS))] + [(), ()])


def whole(config=CONFIG):
    recipe = get_recipe("float32")
    return split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), recipe=recipe)))


@functools.cache
def params():
    """Larger than initial ones, so that no two paths look alike."""
    rng = np.random.default_rng(1)
    return nest(
        {
            path: rng.normal(path.endswith("scale"), 0.3, leaf.shape).astype(np.float32)
            for path, leaf in flatten(whole().params).items()
        }
    )


@functools.cache
def compiled(config, num_microbatches, **mesh):
    on = make_mesh(dataclasses.replace(MeshConfig(), **mesh), jax.devices()[: 4 if mesh else 1])

    def make_model(rng):
        recipe = get_recipe("float32")
        return Decoder(config, rngs=nnx.Rngs(rng), recipe=recipe, constrain=Constrain(on))

    program = Program(
        make_model=make_model,
        loss=cross_entropy(XentConfig(chunk_tokens=5)),
        make_optimizer=sgd,
        mesh=on,
        num_microbatches=num_microbatches,
    )
    return program, quick_train_step(program)


def step(batch, num_updates=0, config=CONFIG, num_microbatches=1, **mesh):
    """(metrics, gradients) of one step at a point of the run."""
    program, train_step = compiled(config, num_microbatches, **mesh)

    def place(leaf, like):
        return jax.device_put(np.asarray(leaf, like.dtype), like.sharding)

    zeros = jax.tree.map(lambda like: np.zeros(like.shape, like.dtype), program.abstract_state)
    state = zeros._replace(params=params(), step=num_updates)
    state = jax.tree.map(place, state, program.abstract_state)
    after, metrics = train_step(state, {}, program.put(batch, len(batch.inputs)))
    grads = jax.tree.map(lambda a, b: a - jax.device_get(b), params(), after.params)
    return jax.device_get(metrics), flatten(grads)


def means_by_hand(params, bind):
    """Of the model and each depth, from every document in a row of its own and all its logits.

    What is behind a document in its row is seen by nothing that counts.
    """
    model = bind(params, {})
    width = max(LENGTHS) + 1
    ids = jnp.asarray([[*each, *[0] * (width - len(each))] for each in DOCUMENTS], jnp.int32)
    counts = np.array([[*each, *[0] * (width - 1 - len(each))] for each in WEIGHTS], np.float32)
    positions = jnp.tile(jnp.arange(width - 1, dtype=jnp.int32)[None], (len(ids), 1))
    h, means = model.hidden(ids[:, :-1], positions), []
    for depth in range(3):
        if depth:
            h = model.predict_further(depth - 1, h[:, :-1], ids[:, depth:-1], positions[:, depth:])
        logprobs = jax.nn.log_softmax(model.logits(h))
        nll = -jnp.take_along_axis(logprobs, ids[:, depth + 1 :, None], axis=-1)[..., 0]
        means.append(jnp.sum(nll * counts[:, depth:]) / counts[:, depth:].sum())
    return means


@functools.cache
def by_hand():
    """(what is minimised, the means, gradients)."""

    def minimised(params):
        means = means_by_hand(params, whole().bind)
        return means[0] + CONFIG.mtp_weight / 2 * (means[1] + means[2]), means

    (total, means), grads = quick(jax.value_and_grad(minimised, has_aux=True))(params())
    names = ("main", "mtp1", "mtp2")
    return float(total), dict(zip(names, map(float, means), strict=True)), flatten(grads)


def check(metrics, grads):
    total, means, wanted = by_hand()
    assert metrics["loss"] == pytest.approx(means["main"], rel=1e-5)
    assert metrics["mtp1/nll"] == pytest.approx(means["mtp1"], rel=1e-5)
    assert metrics["mtp2/nll"] == pytest.approx(means["mtp2"], rel=1e-5)
    assert metrics["total_loss"] == pytest.approx(total, rel=1e-5)
    assert wanted.keys() == grads.keys()
    for path, grad in wanted.items():
        np.testing.assert_allclose(grads[path], grad, rtol=1e-4, atol=2e-6, err_msg=path)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"batch": PACKED},
        {"batch": APART, "num_microbatches": 4},
        {"batch": PACKED, "config": dataclasses.replace(CONFIG, remat="full")},
        {"batch": PACKED, "num_microbatches": 2, "fsdp": 2, "tensor": 2},
    ],
    ids=["packed", "apart_accumulated", "remat", "mesh_accumulated"],
)
def test_losses_and_gradients_are_those_of_every_document_alone(kwargs):
    """However documents are packed, cut into microbatches and spread."""
    check(*step(**kwargs))


def test_weight_changes_with_applied_updates():
    config = dataclasses.replace(CONFIG, mtp_weight=0.4, mtp_weight_changes=((10, 0.1), (20, 0.0)))
    _, means, _ = by_hand()
    further = (means["mtp1"] + means["mtp2"]) / 2
    for num_updates, weight in ((9, 0.4), (10, 0.1), (20, 0.0)):
        metrics, grads = step(PACKED, num_updates, config=config)
        assert metrics["mtp_weight"] == pytest.approx(weight)
        assert metrics["auxiliary_loss"] == pytest.approx(weight * further, rel=1e-5)
        assert metrics["loss"] == pytest.approx(means["main"], rel=1e-5)
        assert (np.abs(grads["mtp.w_join_RD"]).max() > 0) == (weight > 0)


def test_a_weight_of_0_computes_nothing_of_the_modules():
    config = dataclasses.replace(CONFIG, mtp_weight=0.0)
    none = dataclasses.replace(CONFIG, num_mtp_layers=0)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), PACKED)

    def lowered(config):
        return compiled.__wrapped__(config, 1)[0].lower(shapes)

    def num_products(config):
        return lowered(config).as_text().count("dot_general")

    assert num_products(config) == num_products(none) < num_products(CONFIG)
    metrics = lowered(config).out_info[1]
    assert "auxiliary_loss" not in metrics
    assert not any(name.startswith("mtp") for name in metrics)


def test_accuracy_of_a_depth_counts_its_own_targets():
    """Over one document: what the largest logits of each depth hit."""
    made = whole()
    batch = Batch(*(jnp.asarray(x[:1]) for x in APART))
    length = LENGTHS[0]

    @quick
    def run(params):
        model: Any = made.bind(params, {})
        sums = cross_entropy(XentConfig())(model, {}, batch, None)
        h = model.hidden(batch.inputs, batch.positions)
        h = model.predict_further(
            0, h[:, : length - 1], batch.inputs[:, 1:length], batch.positions[:, 1:length]
        )
        return sums.metric_sums["mtp1/accuracy"], jnp.argmax(model.logits(h), axis=-1)[0]

    (correct, count), chosen = run(params())
    weights = WEIGHTS[0][1:]
    assert float(count) == weights.sum() > 0
    assert float(correct) == (weights * (np.asarray(chosen) == DOCUMENTS[0][2:])).sum()


def test_ahead_ends_with_each_document():
    further = ahead(jax.tree.map(jnp.asarray, PACKED), 2)
    np.testing.assert_array_equal(further.segment_ids[0], [1] * 5 + [0] * 2 + [2] * 3 + [0] * 2)
    np.testing.assert_array_equal(further.inputs[0, :5], DOCUMENTS[0][2:7])
    np.testing.assert_array_equal(further.loss_weights[0, :5], WEIGHTS[0][2:])
    np.testing.assert_array_equal(further.positions[0, :5], np.arange(2, 7))
    outside = np.asarray(further.segment_ids) == 0
    assert np.all(np.asarray(further.loss_weights)[outside] == 0)


def test_ahead_of_everything_is_filler():
    further = ahead(jax.tree.map(jnp.asarray, PACKED), LENGTH + 1)
    assert not np.any(further.segment_ids)
    assert not np.any(further.loss_weights)
