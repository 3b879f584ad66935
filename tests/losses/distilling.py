"""Students and teachers of given states, and the distillation loss between them in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain.losses.distill import distill
from jaxtrain.types import Batch
from tests.lora_runs import quick_jit
from tests.losses.given_states import GivenStates, unconstrained

B, T, D, V = 8, 12, 8, 16
TEACHER_D = 5  # another width than the student's
STEP = 1e-30  # of an imaginary part: its square is 0


def draw(length=T, rows=B, seed=0, weights=None):
    """Hidden states and heads of student and teacher, and a batch with a third of weights 0."""
    rng = np.random.default_rng(seed)
    student = rng.normal(size=(rows, length, D)), rng.normal(size=(D, V))
    teacher = rng.normal(size=(rows, length, TEACHER_D)), rng.normal(size=(TEACHER_D, V))
    if weights is None:
        weights = rng.choice([0.0, 0.5, 2.0], (rows, length))
    return student, teacher, make_batch(rng.integers(0, V, (rows, length)), weights)


def make_batch(targets, weights):
    ids = np.zeros(targets.shape, np.int32)
    return Batch(ids, targets.astype(np.int32), weights.astype(np.float32), ids, ids + 1)


def make_sums_and_gradients(config, softcaps, constrain, num_shared, student, teacher, batch):
    def loss_sum(student):
        models = [
            GivenStates(*given, softcap=cap, constrain=constrain, vocab_size=given[1].shape[1])
            for given, cap in zip((student, teacher), softcaps, strict=True)
        ]
        loss = distill(config, num_shared)
        sums = loss(models[0], {"teacher": models[1]}, batch, None)
        return sums.loss_sum, sums

    (_, sums), grads = jax.value_and_grad(loss_sum, has_aux=True)(student)
    return sums, grads


sums_and_gradients = quick_jit(make_sums_and_gradients, static_argnums=(0, 1, 2, 3))


def run(config, student, teacher, batch, *, softcaps=(None, None), num_shared=None):
    as_float32 = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (student, teacher))
    return sums_and_gradients(config, softcaps, unconstrained, num_shared, *as_float32, batch)


# --- the loss in float64, from all logits at once; its slope by complex steps ---


def softmax(x):
    e = np.exp(x - np.real(x).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def kl(p, q):
    return (p * np.log(p / q)).sum(-1)


def divergence(config, kind, p, q):
    """At each place; p and q over the last axis, all positive."""
    if config.top_k is not None and config.top_k < p.shape[-1]:
        order = np.argsort(-p, axis=-1)
        p, q = (np.take_along_axis(each, order, -1) for each in (p, q))
        k = config.top_k
        if config.rest == "tail":
            p, q = (np.concatenate([x[..., :k], x[..., k:].sum(-1)[..., None]], -1) for x in (p, q))
        else:
            p, q = (x[..., :k] / x[..., :k].sum(-1, keepdims=True) for x in (p, q))
    if kind == "forward_kl":
        return kl(p, q)
    if kind == "reverse_kl":
        return kl(q, p)
    m = config.beta * p + (1 - config.beta) * q
    return config.beta * kl(p, m) + (1 - config.beta) * kl(q, m)


def capped(logits, cap):
    return logits if cap is None else cap * np.tanh(logits / cap)


def reference(config, student, teacher, batch, softcaps=(None, None)):
    """Sums, and gradients of the student's states and head."""
    weights, hits = batch.loss_weights.astype(np.float64), np.eye(V)[batch.targets]
    tau = config.temperature
    theirs = capped(teacher[0] @ teacher[1], softcaps[1])
    p = softmax(theirs / tau)

    def parts(logits):
        logits = capped(logits, softcaps[0])
        nll = -np.log((softmax(logits) * hits).sum(-1))
        q = softmax(logits / tau)
        return nll, divergence(config, config.divergence, p, q), q, logits

    def loss(logits):
        nll, distance, *_ = parts(logits)
        return weights * ((1 - config.alpha) * nll + config.alpha * tau**2 * distance)

    logits = student[0] @ student[1]
    nll, distance, q, ours = parts(logits)
    steps = STEP * 1j * np.eye(V)
    dlogits = np.stack([np.imag(loss(logits + step)) / STEP for step in steps], -1)
    per_place = {
        "nll": nll,
        "divergence": distance,
        "kl": divergence(config, "forward_kl", p, q),
        "accuracy": ours.argmax(-1) == batch.targets,
        "agreement": ours.argmax(-1) == theirs.argmax(-1),
        "teacher_nll": -np.log((softmax(theirs) * hits).sum(-1)),
    }
    sums = {name: (weights * x).sum() for name, x in per_place.items()}
    grads = dlogits @ student[1].T, np.einsum("btd,btv->dv", student[0], dlogits)
    return loss(logits).sum(), sums, grads


def max_error(actual, expected):
    return np.abs(np.asarray(actual, np.float64) - expected).max() / np.abs(expected).max()
