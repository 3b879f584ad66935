"""Fault reports on distillation, with whole models: padding, packing, vocabularies, the step."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxtrain.losses.distill import DistillConfig, distill
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import split
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.types import Batch
from tests.hub.families.parity import import_model
from tests.lora_runs import quick_jit

VOCAB = 264
DOCUMENTS = [[5, 9, 2, 7, 1], [8, 3, 250], [6, 4, 255, 12]]
STUDENT = ModelConfig(
    vocab_size=VOCAB, num_layers=1, d_model=16, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=32
)


def decoder(config, seed):
    """A model of random weights."""

    def make(key):
        return Decoder(config, rngs=nnx.Rngs(key), recipe=get_recipe("float32"))

    abstract = split(jax.eval_shape(make, jax.random.key(0)))
    params = quick_jit(lambda key: split(make(key)).params)(jax.random.key(seed))
    return abstract.bind(params, {})


def rows(documents_of_rows, length):
    """A batch in which every document predicts its next token."""
    fields = {name: np.zeros((len(documents_of_rows), length), np.int32) for name in Batch._fields}
    weights = np.zeros((len(documents_of_rows), length), np.float32)
    for row, documents in enumerate(documents_of_rows):
        start = 0
        for number, ids in enumerate(documents, 1):
            place = slice(start, start + len(ids))
            fields["inputs"][row, place] = ids
            fields["targets"][row, place] = [*ids[1:], 0]
            fields["positions"][row, place] = np.arange(len(ids))
            fields["segment_ids"][row, place] = number
            weights[row, start : start + len(ids) - 1] = 1
            start += len(ids)
    return jax.tree.map(jnp.asarray, Batch(**fields | {"loss_weights": weights}))


def gradients(config, student, teacher, batch, num_shared=None):
    """Sums, and gradients of the student's parameters."""
    parts = split(student)

    def loss_sum(params):
        model = parts.bind(params, {})
        sums = distill(config, num_shared)(model, {"teacher": teacher}, batch, None)
        return sums.loss_sum, sums

    (_, sums), grads = quick_jit(jax.value_and_grad(loss_sum, has_aux=True))(parts.params)
    return sums, grads


def mean(sums):
    return float(sums.loss_sum / sums.weight_sum)


def test_loss_and_gradients_do_not_depend_on_padding_or_packing():
    student = decoder(STUDENT, 0)
    teacher = decoder(dataclasses.replace(STUDENT, d_model=32, num_layers=2), 1)
    config = DistillConfig(divergence="jensen_shannon", temperature=2.0, chunk_tokens=8)
    alone = [[document] for document in DOCUMENTS]
    layouts = [rows(alone, 8), rows(alone, 64), rows([DOCUMENTS], 16)]
    (first, grads), *others = [gradients(config, student, teacher, batch) for batch in layouts]
    for sums, other_grads in others:
        assert sums.weight_sum == first.weight_sum == 9
        assert mean(sums) == pytest.approx(mean(first), abs=1e-5)
        for x, y in zip(jax.tree.leaves(other_grads), jax.tree.leaves(grads), strict=True):
            np.testing.assert_allclose(x, y, atol=2e-5)


@pytest.mark.shared
def test_a_teacher_with_a_padded_vocabulary_teaches_the_real_ids(shared_dir, tmp_path):
    """The same weights with 288 and, cut, with 264 rows of embeddings."""
    script = shared_dir / "cases" / "inputs" / "HFX-01.make.py"
    path = tmp_path / "model"
    subprocess.run([sys.executable, script, path, "--pad_vocab", "288"], check=True)
    assert json.loads((path / "config.json").read_text())["vocab_size"] == 288
    imported = import_model(path)
    teacher = imported.parts.bind(imported.params, {})
    student = decoder(STUDENT, 0)
    config = DistillConfig(divergence="reverse_kl", chunk_tokens=8)
    batch = rows([[document] for document in DOCUMENTS], 8)
    with pytest.raises(ValueError, match="the student has 264 ids and the teacher 288; say how"):
        distill(config)(student, {"teacher": teacher}, batch, None)
    sums, _ = gradients(config, student, teacher, batch, num_shared=VOCAB)
    logits = [
        np.asarray(m(batch.inputs, batch.positions, batch.segment_ids), np.float64)[..., :VOCAB]
        for m in (student, teacher)
    ]
    q, p = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in logits)
    per_place = 0.9 * (q * np.log(q / p)).sum(-1)
    targets, weights = np.asarray(batch.targets)[..., None], np.asarray(batch.loss_weights)
    per_place -= 0.1 * np.log(np.take_along_axis(q, targets, -1)[..., 0])
    assert sums.loss_sum == pytest.approx((per_place * weights).sum(), rel=1e-5)


def test_a_smaller_student_learns_what_its_teacher_says():
    """A whole model, trained on a handful of rows until it says what the teacher says."""
    teacher = decoder(
        ModelConfig(
            vocab_size=16, num_layers=2, d_model=24, num_heads=2, num_kv_heads=2, head_dim=12,
            d_ff=48,
        ),
        1,
    )  # fmt: skip
    shape = dataclasses.replace(STUDENT, vocab_size=16, d_model=32, d_ff=64, head_dim=16)
    parts = split(decoder(shape, 0))
    rng = np.random.default_rng(0)
    batch = rows([[rng.integers(0, 16, 8).tolist()] for _ in range(4)], 8)
    loss = distill(DistillConfig(alpha=1.0))
    optimizer = optax.rmsprop(0.01, decay=0.95)

    def step(carry, rate):
        params, state = carry

        def mean_loss(params):
            sums = loss(parts.bind(params, {}), {"teacher": teacher}, batch, None)
            return sums.loss_sum / sums.weight_sum

        kl, grads = jax.value_and_grad(mean_loss)(params)
        updates, state = optimizer.update(grads, state, params)
        updates = jax.tree.map(lambda u: u * rate, updates)
        return (optax.apply_updates(params, updates), state), kl

    carry = (parts.params, optimizer.init(parts.params))
    rates = jnp.linspace(1, 0.01, 250)
    _, kls = quick_jit(lambda carry: jax.lax.scan(step, carry, rates))(carry)
    assert kls[0] > 0.05
    assert kls[-1] < 1e-3
