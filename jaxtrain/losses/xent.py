"""Cross-entropy of the next (or the masked) token, without logits of the whole batch.

    nll = lse - logit[target]    lse = log Σ_v exp(logit[v])
    loss_sum = Σ weight · (nll + z_loss · lse²)

The squared log-normaliser keeps logits from drifting (PaLM, arXiv 2204.02311, §5: z_loss = 1e-4).
With label smoothing ε (Szegedy et al. 2016, arXiv 1512.00567, §7) nll becomes the cross-entropy
from (1 − ε) · onehot + ε / V, which is nll + ε · (logit[target] − mean_v logit[v]).

Float32 logits exist for one chunk of tokens at a time. Where the loss is differentiated, its
forward pass makes the gradients with respect to hidden states and head in the same visit, while the
chunk's logits are at hand, so nothing is computed twice; the backward pass scales them by the
cotangent. Where it is not (evaluation), only sums are made.
How chunks are cut and the head is multiplied: `head.py`. A model with modules that predict further
tokens has losses of them beside this one: `mtp.py`.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain.losses.head import (
    CHUNK_TOKENS,
    CHUNK_TOKENS_DOC,
    Head,
    Normaliser,
    counted,
    head_of,
    join_positions,
    lse,
    num_chunks,
    split_positions,
)
from jaxtrain.losses.mtp import note_depths
from jaxtrain.losses.neftune import embedding_noise
from jaxtrain.options import option
from jaxtrain.types import Array, Batch, Loss, LossSums


@dataclasses.dataclass(frozen=True)
class XentConfig:
    """Section `loss` of the config."""

    z_loss: float = option(0.0, "Weight of the squared log-normaliser; PaLM uses 1e-4.")
    chunk_tokens: int = option(CHUNK_TOKENS, CHUNK_TOKENS_DOC, resumable=True)
    label_smoothing: float = option(
        0.0, "Share of each target's probability that is spread evenly over the vocabulary."
    )

    neftune_alpha: float = option(
        0.0,
        "Noise on embeddings in training: uniform, up to alpha / sqrt(length of the segment x "
        "width); 5 to 15 in fine-tuning (arXiv 2310.05914), 0: none.",
    )

    def __post_init__(self) -> None:
        if not (self.neftune_alpha >= 0 and math.isfinite(self.neftune_alpha)):
            raise ValueError(f"neftune_alpha={self.neftune_alpha} must be >= 0 and finite.")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be in [0, 1).")
        if not (self.z_loss >= 0 and math.isfinite(self.z_loss)):
            raise ValueError(f"z_loss={self.z_loss} must be >= 0 and finite.")
        if self.chunk_tokens < 1:
            raise ValueError(f"chunk_tokens={self.chunk_tokens} must be >= 1.")


def cross_entropy(config: XentConfig) -> Loss:
    """Next-token or masked-token cross-entropy, whichever the batch's targets and weights say.

    Metrics: "nll" and "accuracy" (the target has the largest logit) and, where it is on, "z_loss"
    (the mean of lse², without its weight), each a sum over target weights. They carry no gradient,
    and nll knows nothing of label smoothing. Modules of multi-token prediction have "mtp1/nll",
    "mtp1/accuracy", … of their own targets, and are no part of loss_sum.
    """

    def loss(model: Any, frozen: Mapping[str, Any], batch: Batch, rng: Any) -> LossSums:
        del frozen  # no other model takes part
        h_BTD = _hidden(config, model, batch, rng)
        num_rows, length = batch.targets.shape
        head = head_of(model, num_rows)
        spec = _Spec(
            z_loss=config.z_loss,
            label_smoothing=config.label_smoothing,
            num_chunks=num_chunks(head, config.chunk_tokens, num_rows, length),
            head=head,
        )

        def sums_of(h_BTD: jax.Array, batch: Batch) -> Sums:
            return _xent(spec, h_BTD, model.head_DV(), batch.targets, batch.loss_weights)

        sums = sums_of(h_BTD, batch)
        count = jnp.sum(batch.loss_weights)
        metric_sums = {"nll": (sums.nll, count), "accuracy": (sums.correct, count)}
        if config.z_loss:
            metric_sums["z_loss"] = (sums.z, count)
        if model.config.trains_mtp:
            metric_sums |= note_depths(model, h_BTD, batch, rng, sums_of)
        return LossSums(sums.loss, count, metric_sums)

    return loss


def _hidden(config: XentConfig, model: Any, batch: Batch, rng: Any) -> jax.Array:
    arguments = batch.inputs, batch.positions, batch.segment_ids
    if rng is None or not config.neftune_alpha:
        return model.hidden(*arguments, rng)
    rng, noise_rng = jax.random.split(rng)
    noise = embedding_noise(config.neftune_alpha, batch.segment_ids, noise_rng)
    return model.hidden(*arguments, rng, perturb=noise)


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What is compiled in."""

    z_loss: float
    label_smoothing: float
    num_chunks: int
    head: Head


class Sums(NamedTuple):
    """Weighted sums over tokens; only `loss` is differentiable."""

    loss: jax.Array
    nll: jax.Array
    z: jax.Array
    correct: jax.Array


class _Chunk(NamedTuple):
    h_BTD: Array
    targets_BT: Array
    weights_BT: Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _xent(spec: _Spec, h_BTD, head_DV, targets_BT, weights_BT) -> Sums:
    """The sums without a gradient; `_xent_forward` makes both."""
    head_DV = spec.head.gather(head_DV)  # once, ahead of the loop

    def visit(sums_B: Sums, chunk: _Chunk):
        logits_BTV = spec.head.logits(counted(chunk.h_BTD, chunk.weights_BT), head_DV)
        norm = spec.head.normalise(logits_BTV)
        return _added(sums_B, _sums_B(spec, logits_BTV, norm, chunk)), None

    chunks = _chunks(spec, h_BTD, targets_BT, weights_BT)
    sums_B, _ = lax.scan(visit, _zero_sums(h_BTD), chunks)
    return _over_rows(sums_B)


def _xent_forward(spec: _Spec, h_BTD, head_DV, targets_BT, weights_BT):
    head = spec.head
    head_DV = head.gather(head_DV)

    def visit(carry: tuple[Sums, jax.Array], chunk: _Chunk):
        sums_B, dhead = carry
        states_BTD = counted(chunk.h_BTD, chunk.weights_BT)
        logits_BTV = head.logits(states_BTD, head_DV)
        norm = head.normalise(logits_BTV)
        dlogits_BTV = _dlogits(spec, logits_BTV, norm, chunk).astype(head_DV.dtype)
        dh_BTD = head.d_hidden(dlogits_BTV, head_DV, h_BTD.dtype)
        dhead += head.d_head(states_BTD, dlogits_BTV)
        return (_added(sums_B, _sums_B(spec, logits_BTV, norm, chunk)), dhead), dh_BTD

    chunks = _chunks(spec, h_BTD, targets_BT, weights_BT)
    carry = (_zero_sums(h_BTD), head.zero_d_head(head_DV))
    (sums_B, dhead), dh_chunks = lax.scan(visit, carry, chunks)
    dhead_DV = head.reduce_d_head(dhead, head_DV.dtype)
    return _over_rows(sums_B), (join_positions(dh_chunks, h_BTD.shape[1]), dhead_DV)


def _xent_backward(spec: _Spec, grads, cotangents: Sums):
    del spec
    scaled = ((g.astype(jnp.float32) * cotangents.loss).astype(g.dtype) for g in grads)
    return (*scaled, None, None)


_xent.defvjp(_xent_forward, _xent_backward)


# --- one chunk ---


def _sums_B(spec: _Spec, logits_BTV: jax.Array, norm: Normaliser, chunk: _Chunk) -> Sums:
    """Per row: the sum over rows, and with it over the mesh, is left for the end."""
    weights_BT1 = chunk.weights_BT[..., None]
    target_BT1 = spec.head.target_logits(logits_BTV, chunk.targets_BT)
    lse_BT1 = lse(norm)
    counts_BT1 = weights_BT1 != 0

    def total(x_BT1: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(counts_BT1, weights_BT1 * x_BT1, 0.0), axis=(1, 2))

    nll_B, z_B = total(lse_BT1 - target_BT1), total(jnp.square(lse_BT1))
    correct_B = total((target_BT1 >= norm.max_BT1).astype(jnp.float32))
    loss_B = nll_B + spec.z_loss * z_B
    if spec.label_smoothing:
        loss_B += spec.label_smoothing * total(target_BT1 - _mean_logit(spec, logits_BTV))
    return Sums(loss_B, nll_B, z_B, correct_B)


def _mean_logit(spec: _Spec, logits_BTV: jax.Array) -> jax.Array:
    inside_BTV = spec.head.inside(logits_BTV)
    total_BT1 = jnp.sum(jnp.where(inside_BTV, logits_BTV, 0.0), axis=-1, keepdims=True)
    return total_BT1 / spec.head.vocab_size


def _dlogits(spec: _Spec, logits_BTV: jax.Array, norm: Normaliser, chunk: _Chunk) -> jax.Array:
    """d loss / d logits before the soft cap: weight · ((1 + 2 · z_loss · lse) · p - label)."""
    vocabulary = lax.broadcasted_iota(jnp.int32, logits_BTV.shape, 2)
    hit_BTV = vocabulary == chunk.targets_BT[..., None]
    p_scale_BT1 = (1 + 2 * spec.z_loss * lse(norm)) / norm.sum_BT1
    labels_BTV = hit_BTV.astype(jnp.float32)
    if spec.label_smoothing:
        evenly_BTV = spec.head.inside(labels_BTV).astype(jnp.float32) / spec.head.vocab_size
        labels_BTV += spec.label_smoothing * (evenly_BTV - labels_BTV)
    dlogits_BTV = spec.head.uncap(logits_BTV, norm.exp_BTV * p_scale_BT1 - labels_BTV)
    return dlogits_BTV * chunk.weights_BT[..., None]


def _zero_sums(h_BTD: jax.Array) -> Sums:
    zeros_B = jnp.zeros(h_BTD.shape[:1], jnp.float32)
    return Sums(zeros_B, zeros_B, zeros_B, zeros_B)


def _over_rows(sums_B: Sums) -> Sums:
    return jax.tree.map(jnp.sum, sums_B)


def _added(a: Sums, b: Sums) -> Sums:
    return jax.tree.map(jnp.add, a, b)


def _chunks(spec: _Spec, *arrays: Array) -> _Chunk:
    return _Chunk(*(split_positions(spec.num_chunks, x) for x in arrays))
