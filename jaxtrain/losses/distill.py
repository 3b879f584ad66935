"""Distillation from a teacher's probabilities, without logits of the whole batch of either model.

    loss = (1 − α) · nll + α · τ² · D(P, Q)        P, Q at temperature τ: softmax(logits / τ)

D is one of `divergence.DIVERGENCES`. Its gradient with respect to logits shrinks as 1 / τ², which
the factor makes up for, so that α means the same at every temperature (Hinton et al. 2015, arXiv
1503.02531, §2). What is trained is what the batch's weights say, as in cross-entropy.

The teacher is `frozen["teacher"]`, a model of any width, depth and number format with the same
tokenizer, run in the same step without dropout; or its likeliest ids were stored (`TeacherBatch`),
and it is not there at all. P and Q are over the ids that both have.

As in `xent.py` gradients are made in the forward pass, chunk by chunk, by hand.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain.losses import teacher as teacher_lib
from jaxtrain.losses.divergence import (
    DIVERGENCES,
    FORWARD_KL,
    Outcomes,
    compare,
    log_sum_exp,
)
from jaxtrain.losses.head import (
    CHUNK_TOKENS,
    CHUNK_TOKENS_DOC,
    Head,
    counted,
    head_of,
    join_positions,
    lse,
    num_chunks,
    split_positions,
)
from jaxtrain.losses.teacher import RESTS, TAIL, Sharing
from jaxtrain.options import option
from jaxtrain.types import Array, Batch, Loss, LossSums, TeacherBatch

_DISTANCES = ("mse", "cosine")


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """Section `loss` of a distillation."""

    divergence: str = option(
        FORWARD_KL,
        "forward_kl covers all that the teacher may say; reverse_kl keeps to what it is likely to "
        "say; jensen_shannon lies between.",
        choices=DIVERGENCES,
    )
    beta: float = option(
        0.5, "Of jensen_shannon, above 0 (towards forward_kl) and below 1 (towards reverse_kl)."
    )
    temperature: float = option(1.0, "Divides both models' logits; the loss has its square.")
    alpha: float = option(0.9, "Share of the divergence in the loss; the rest is cross-entropy.")
    top_k: int | None = option(
        None, "Ids of the teacher that count one by one, its likeliest; None: all of them."
    )
    rest: str = option(
        TAIL,
        "All ids beyond the likeliest: tail, one outcome together; renormalized, none.",
        choices=RESTS,
    )
    hidden_weight: float = option(
        0.0, "Weight of the distance between final hidden states, of one width in both (0: none)."
    )
    hidden_distance: str = option(
        "mse", "mse: mean squared difference; cosine: 1 - cosine.", choices=_DISTANCES
    )
    chunk_tokens: int = option(CHUNK_TOKENS, CHUNK_TOKENS_DOC, resumable=True)

    def __post_init__(self) -> None:
        checks = {
            "divergence": (self.divergence in DIVERGENCES, f"one of {', '.join(DIVERGENCES)}"),
            "beta": (0 < self.beta < 1, "above 0 and below 1; the limits are the two KLs"),
            "temperature": (0 < self.temperature < math.inf, "above 0 and finite"),
            "alpha": (0 < self.alpha <= 1, "above 0 and at most 1; without a teacher: sft"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1, or None for all"),
            "rest": (self.rest in RESTS, f"one of {', '.join(RESTS)}"),
            "hidden_weight": (0 <= self.hidden_weight < math.inf, ">= 0 and finite"),
            "hidden_distance": (self.hidden_distance in _DISTANCES, "one of mse, cosine"),
            "chunk_tokens": (self.chunk_tokens >= 1, ">= 1"),
        }
        for name, (holds, expected) in checks.items():
            if not holds:  # NaN fails every comparison
                raise ValueError(f"{name}={getattr(self, name)} must be {expected}.")


def distill(config: DistillConfig, num_shared: int | None = None) -> Loss:
    """The loss of a student beside `frozen["teacher"]`, or on `TeacherBatch`es.

    Metrics: "nll" and "accuracy" as in cross-entropy; "kl", KL(P ‖ Q) over the outcomes compared;
    "divergence" where that is another; "agreement" (both find the same id likeliest);
    "teacher_nll" and "hidden" where there is such a thing. Each is a sum over target weights and
    has neither α nor τ² in it.

    Args:
      num_shared: the tokenizer's ids; None: those of both models, which must be as many.
    """

    def loss(model: Any, frozen: Mapping[str, Any], batch: Any, rng: Any) -> LossSums:
        tokens = batch.tokens if isinstance(batch, TeacherBatch) else batch
        weights_BT = tokens.loss_weights
        h_BTD = model.hidden(tokens.inputs, tokens.positions, tokens.segment_ids, rng)
        head_DV, teacher = model.head_DV(), _teacher(config, frozen, batch)
        spec = _spec(config, num_shared, (model, teacher.model), head_DV.shape[1], weights_BT.shape)
        sums: _Sums = _distilled(
            spec, h_BTD, head_DV, teacher.said, teacher.head_DV, tokens.targets, weights_BT
        )
        metrics = sums._asdict()
        loss_sum = metrics.pop("loss")
        if config.divergence == FORWARD_KL:
            del metrics["divergence"]
        if teacher.model is None:
            del metrics["teacher_nll"]
        if config.hidden_weight:
            metrics["hidden"] = _hidden_distance(config, h_BTD, teacher.said[0], weights_BT)
            loss_sum += config.hidden_weight * metrics["hidden"]
        count = jnp.sum(weights_BT)
        return LossSums(loss_sum, count, {name: (x, count) for name, x in metrics.items()})

    return loss


# --- what is asked of teacher and student ---


class _Teacher(NamedTuple):
    model: Any  # None: what it said was stored
    said: tuple[Array, ...]  # [B, T, …]: hidden states; or ids and log-probabilities
    head_DV: Array | None


def _teacher(config: DistillConfig, frozen: Mapping[str, Any], batch: Any) -> _Teacher:
    if not isinstance(batch, TeacherBatch):
        assert isinstance(batch, Batch), type(batch)
        model = frozen["teacher"]
        h_BTD = model.hidden(batch.inputs, batch.positions, batch.segment_ids, None)
        return _Teacher(model, (lax.stop_gradient(h_BTD),), lax.stop_gradient(model.head_DV()))
    if config.top_k is not None:
        raise ValueError(
            f"config.loss.top_k={config.top_k} is of a teacher that is run; of a stored one, "
            f"the {batch.teacher_ids.shape[-1]} ids count that were stored: leave it at None."
        )
    if config.hidden_weight:
        raise ValueError(
            f"config.loss.hidden_weight={config.hidden_weight} needs the teacher itself; of this "
            "one only probabilities were stored."
        )
    return _Teacher(None, (batch.teacher_ids, batch.teacher_logprobs), None)


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What is compiled in."""

    config: DistillConfig
    sharing: Sharing
    num_chunks: int
    student: Head
    teacher: Head | None


def _spec(
    config: DistillConfig,
    num_shared: int | None,
    models: tuple[Any, Any],
    num_columns: int,
    shape: tuple[int, ...],
) -> _Spec:
    student, teacher = (None if each is None else head_of(each, shape[0]) for each in models)
    assert student is not None
    sizes = [each.vocab_size for each in (student, teacher) if each is not None]
    if num_shared is None and len(set(sizes)) > 1:
        raise ValueError(
            f"the student has {sizes[0]} ids and the teacher {sizes[1]}; say how many their "
            "tokenizer has."
        )
    num_shared = sizes[0] if num_shared is None else num_shared
    if not 1 <= num_shared <= min(sizes):
        raise ValueError(
            f"student and teacher share {num_shared} ids, but have {' and '.join(map(str, sizes))}."
        )
    sharing = Sharing(num_shared, num_columns, config.temperature, config.rest)
    num = num_chunks(student, config.chunk_tokens, *shape)
    return _Spec(config, sharing, num, student, teacher)


def _hidden_distance(config: DistillConfig, h_BTD, other_BTD, weights_BT) -> jax.Array:
    """Between final hidden states of student and teacher, summed over target weights."""
    if h_BTD.shape != other_BTD.shape:
        raise ValueError(
            f"config.loss.hidden_weight={config.hidden_weight} compares hidden states, but the "
            f"student is {h_BTD.shape[-1]} wide and the teacher {other_BTD.shape[-1]}; set it to "
            "0, or give the student the teacher's d_model."
        )
    x_BTD, y_BTD = (counted(each, weights_BT).astype(jnp.float32) for each in (h_BTD, other_BTD))
    if config.hidden_distance == "mse":
        return jnp.sum(weights_BT * jnp.mean(jnp.square(x_BTD - y_BTD), axis=-1))
    least = float(jnp.finfo(jnp.float32).tiny)
    squares = (jnp.maximum(jnp.sum(jnp.square(each), -1), least) for each in (x_BTD, y_BTD))
    x_BT, y_BT = map(lax.rsqrt, squares)
    return jnp.sum(weights_BT * (1 - jnp.sum(x_BTD * y_BTD, -1) * x_BT * y_BT))


# --- chunk by chunk ---


class _Sums(NamedTuple):
    """Weighted sums over tokens; only `loss` is differentiable."""

    loss: jax.Array
    nll: jax.Array
    divergence: jax.Array
    kl: jax.Array
    accuracy: jax.Array
    agreement: jax.Array
    teacher_nll: jax.Array


class _Chunk(NamedTuple):
    h_BTD: Array
    said: tuple[Array, ...]
    targets_BT: Array
    weights_BT: Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _distilled(spec: _Spec, h_BTD, head_DV, said, teacher_DV, targets_BT, weights_BT) -> _Sums:
    """The sums without a gradient; `_distilled_forward` makes both."""
    heads = _gathered(spec, head_DV, teacher_DV)

    def visit(sums_B: _Sums, chunk: _Chunk):
        more_B, _ = _visit(spec, chunk, counted(chunk.h_BTD, chunk.weights_BT), *heads)
        return jax.tree.map(jnp.add, sums_B, more_B), None

    chunks = _chunks(spec, h_BTD, said, targets_BT, weights_BT)
    sums_B, _ = lax.scan(visit, _zero_sums(h_BTD), chunks)
    return jax.tree.map(jnp.sum, sums_B)


def _distilled_forward(spec: _Spec, h_BTD, head_DV, said, teacher_DV, targets_BT, weights_BT):
    head = spec.student
    head_DV, teacher_DV = _gathered(spec, head_DV, teacher_DV)

    def visit(carry: tuple[_Sums, jax.Array], chunk: _Chunk):
        sums_B, dhead = carry
        states_BTD = counted(chunk.h_BTD, chunk.weights_BT)
        more_B, dlogits_BTV = _visit(spec, chunk, states_BTD, head_DV, teacher_DV)
        dlogits_BTV = dlogits_BTV.astype(head_DV.dtype)
        dh_BTD = head.d_hidden(dlogits_BTV, head_DV, h_BTD.dtype)
        dhead += head.d_head(states_BTD, dlogits_BTV)
        return (jax.tree.map(jnp.add, sums_B, more_B), dhead), dh_BTD

    chunks = _chunks(spec, h_BTD, said, targets_BT, weights_BT)
    carry = (_zero_sums(h_BTD), head.zero_d_head(head_DV))
    (sums_B, dhead), dh_chunks = lax.scan(visit, carry, chunks)
    dhead_DV = head.reduce_d_head(dhead, head_DV.dtype)
    return jax.tree.map(jnp.sum, sums_B), (join_positions(dh_chunks, h_BTD.shape[1]), dhead_DV)


def _distilled_backward(spec: _Spec, grads, cotangents: _Sums):
    del spec
    scaled = ((g.astype(jnp.float32) * cotangents.loss).astype(g.dtype) for g in grads)
    return (*scaled, None, None, None, None)


_distilled.defvjp(_distilled_forward, _distilled_backward)


def _visit(spec: _Spec, chunk: _Chunk, states_BTD, head_DV, teacher_DV) -> tuple[_Sums, jax.Array]:
    """The sums of a chunk by row, and d loss / d logits before the soft cap."""
    config, shared = spec.config, spec.sharing.num_shared
    logits_BTV = spec.student.logits(states_BTD, head_DV)
    norm = spec.student.normalise(logits_BTV)
    columns = lax.broadcasted_iota(jnp.int32, logits_BTV.shape, 2)
    shared_BTV = jnp.where(columns < shared, logits_BTV, -jnp.inf)
    outcomes, views_BTV, teacher_nll_BT1 = _said(spec, chunk, teacher_DV)
    found = compare(config.divergence, config.beta, outcomes, shared_BTV / config.temperature)
    target_BT1 = spec.student.target_logits(logits_BTV, chunk.targets_BT)
    nll_BT1 = lse(norm) - target_BT1
    both_BTV = _is_largest(shared_BTV) & _is_largest(views_BTV)
    scale = config.alpha * config.temperature**2
    sums_BT1 = _Sums(
        loss=(1 - config.alpha) * nll_BT1 + scale * found.divergence_BT1,
        nll=nll_BT1,
        divergence=found.divergence_BT1,
        kl=found.forward_kl_BT1,
        accuracy=(target_BT1 >= norm.max_BT1).astype(jnp.float32),
        agreement=jnp.any(both_BTV, -1, keepdims=True).astype(jnp.float32),
        teacher_nll=teacher_nll_BT1,
    )
    weights_BT1 = chunk.weights_BT[..., None]
    counts_BT1 = weights_BT1 != 0

    def total(x_BT1: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(counts_BT1, weights_BT1 * x_BT1, 0.0), axis=(1, 2))

    hit_BTV = (columns == chunk.targets_BT[..., None]).astype(jnp.float32)
    from_nll_BTV = norm.exp_BTV / norm.sum_BT1 - hit_BTV
    dlogits_BTV = (1 - config.alpha) * from_nll_BTV + scale / config.temperature * found.slope_BTV
    dlogits_BTV = spec.student.uncap(logits_BTV, dlogits_BTV)
    return jax.tree.map(total, sums_BT1), jnp.where(counts_BT1, weights_BT1 * dlogits_BTV, 0.0)


def _said(spec: _Spec, chunk: _Chunk, teacher_DV) -> tuple[Outcomes, jax.Array, jax.Array]:
    """The teacher's outcomes, what it finds likeliest by column, and its nll (0: not known)."""
    if spec.teacher is None:
        outcomes = teacher_lib.stored(spec.sharing, *chunk.said)
        return outcomes, outcomes.logprobs_BTV, jnp.zeros_like(chunk.weights_BT)[..., None]
    states_BTD = counted(chunk.said[0], chunk.weights_BT)
    logits_BTV = spec.teacher.logits(states_BTD, teacher_DV)
    outcomes, logits_BTV = teacher_lib.computed(spec.sharing, logits_BTV, spec.config.top_k)
    targets_BT1 = chunk.targets_BT[..., None]
    target_BT1 = jnp.take_along_axis(logits_BTV, targets_BT1, axis=-1, mode="fill")
    return outcomes, logits_BTV, log_sum_exp(logits_BTV) - target_BT1


def _is_largest(x_BTV: jax.Array) -> jax.Array:
    return x_BTV >= jnp.max(x_BTV, axis=-1, keepdims=True)


def _gathered(spec: _Spec, head_DV, teacher_DV) -> tuple[jax.Array, jax.Array | None]:
    """Both heads as they multiply, once, ahead of the loop."""
    head_DV = spec.student.gather(head_DV)
    return head_DV, None if spec.teacher is None else spec.teacher.gather(teacher_DV)


def _zero_sums(h_BTD: jax.Array) -> _Sums:
    return _Sums(*[jnp.zeros(h_BTD.shape[:1], jnp.float32)] * len(_Sums._fields))


def _chunks(spec: _Spec, h_BTD, said, targets_BT, weights_BT) -> _Chunk:
    chunk = _Chunk(h_BTD, said, targets_BT, weights_BT)
    return jax.tree.map(lambda x: split_positions(spec.num_chunks, x), chunk)
