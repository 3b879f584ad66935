"""Answers, rows of them, and models whose states do not depend on where an answer stands."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from filled import quick

from jaxtrain.precision.recipe import get_recipe
from jaxtrain.types import AnswerBatch, Batch
from tests.losses.given_states import unconstrained

D, V = 4, 8


@dataclasses.dataclass(frozen=True)
class Answer:
    """A document: prompt and answer. `reference` is its cached log-probability."""

    ids: Any
    prompt_len: int
    value: float = 0.0
    reference: float = 0.0

    @property
    def num_trained(self):
        return len(self.ids) - self.prompt_len


def draw_answer(rng, value=0.0):
    prompt_len, num_trained = (int(n) for n in rng.integers(1, 4, size=2))
    ids = rng.integers(0, V, prompt_len + num_trained)
    return Answer(ids, prompt_len, value, -float(rng.uniform(1, 3) * num_trained))


def make_rows(rows, length, num_columns):
    """An `AnswerBatch` of rows, each a list of groups, each a list of answers."""
    tokens = {
        name: np.zeros((len(rows), length), np.int32)
        for name in ("inputs", "targets", "positions", "segment_ids")
    }
    weights = np.zeros((len(rows), length), np.float32)
    group_ids = np.zeros((len(rows), num_columns), np.int32)
    values, reference = (np.zeros((len(rows), num_columns), np.float32) for _ in range(2))
    for b, groups in enumerate(rows):
        start = column = 0
        for group_id, group in enumerate(groups, 1):
            for answer in group:
                n = len(answer.ids)
                span = slice(start, start + n)
                tokens["inputs"][b, span] = answer.ids
                tokens["targets"][b, start : start + n - 1] = answer.ids[1:]
                tokens["positions"][b, span] = np.arange(n)
                tokens["segment_ids"][b, span] = column + 1
                weights[b, start + answer.prompt_len - 1 : start + n - 1] = 1
                group_ids[b, column] = group_id
                values[b, column], reference[b, column] = answer.value, answer.reference
                start, column = start + n, column + 1
    batch = Batch(
        tokens["inputs"], tokens["targets"], weights, tokens["positions"], tokens["segment_ids"]
    )
    return AnswerBatch(batch, group_ids, values, reference)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenStates:
    """A model whose hidden state is a row of a table, whose scores are another table's entries."""

    states_VD: Any
    w_DV: Any
    w_D: Any
    recipe_name: str = dataclasses.field(default="float32", metadata={"static": True})

    config = SimpleNamespace(logit_softcap=None, vocab_size=V)
    constrain = staticmethod(unconstrained)

    @property
    def recipe(self):
        return get_recipe(self.recipe_name)

    def hidden(self, inputs, positions, segment_ids, rng):
        assert rng is None, "these losses run without dropout"
        return self.states_VD[inputs]

    def head_DV(self):
        return self.w_DV

    def scores(self, h_BTD):
        return h_BTD.astype(jnp.float32) @ self.w_D.astype(jnp.float32)


def draw_model(seed, dtype=np.float64, recipe_name="float32"):
    rng = np.random.default_rng(seed)
    shapes = (V, D), (D, V), (D,)
    return TokenStates(*(rng.normal(size=s).astype(dtype) for s in shapes), recipe_name)


def cast(model, dtype):
    return jax.tree.map(lambda x: np.asarray(x).astype(jnp.dtype(dtype)), model)


def token_logprobs(model, answer):
    """Of the trained tokens, in float64."""
    logits = model.states_VD[answer.ids[:-1]] @ model.w_DV
    logits = logits - logits.max(-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = np.take_along_axis(logprobs, np.asarray(answer.ids)[1:, None], axis=-1)[:, 0]
    return own[answer.prompt_len - 1 :]


def numeric_gradient(of, model, step=1e-6):
    """Central differences of `of(model)` in float64, as a model."""
    leaves, structure = jax.tree.flatten(model)
    grads = [np.zeros_like(x) for x in leaves]
    for leaf, grad in zip(leaves, grads, strict=True):
        for index in np.ndindex(leaf.shape):
            kept = leaf[index]
            leaf[index] = kept + step
            above = of(structure.unflatten(leaves))
            leaf[index] = kept - step
            below = of(structure.unflatten(leaves))
            leaf[index] = kept
            grad[index] = (above - below) / (2 * step)
    return structure.unflatten(grads)


@functools.partial(quick, static_argnums=0)
def sums_and_gradients(loss, model, frozen, batch):
    """As the training step makes them."""

    def loss_sum(model):
        sums = loss(model, frozen, batch, jax.random.key(0))
        return sums.loss_sum, sums

    grads, sums = jax.grad(loss_sum, has_aux=True)(model)
    return sums, grads


def assert_close(actual, expected, rel, label=""):
    """Each array within `rel` of its largest expected value (1 at least)."""
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        y = np.asarray(y, np.float64)
        worst = np.abs(np.asarray(x, np.float64) - y).max() / max(1.0, np.abs(y).max())
        assert worst <= rel, (label, worst)
