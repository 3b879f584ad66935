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

A chunk takes every num_chunks-th position of each row, so that chunks keep whatever sharding rows
and positions have. Each shard of the batch adds up a head gradient of its own, and these are added
over the mesh once, behind the last chunk, instead of once per chunk.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain.options import option
from jaxtrain.parallel.mesh import batch_shards
from jaxtrain.types import Array, Batch, Loss, LossSums


@dataclasses.dataclass(frozen=True)
class XentConfig:
    """Section `loss` of the config."""

    z_loss: float = option(0.0, "Weight of the squared log-normaliser; PaLM uses 1e-4.")
    chunk_tokens: int = option(
        1024,
        "Tokens per device whose float32 logits exist at a time (fewer: less memory; GPUs: 2048 or "
        "more, so that adding up the head's gradient costs little beside the matmuls).",
        resumable=True,
    )

    label_smoothing: float = option(
        0.0, "Share of each target's probability that is spread evenly over the vocabulary."
    )

    def __post_init__(self) -> None:
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
    and nll knows nothing of label smoothing.
    """

    def loss(model: Any, frozen: Mapping[str, Any], batch: Batch, rng: Any) -> LossSums:
        del frozen  # no other model takes part
        h_BTD = model.hidden(batch.inputs, batch.positions, batch.segment_ids, rng)
        num_rows, length = batch.targets.shape
        num_shards = _num_batch_shards(model.constrain, num_rows)
        chunk_len = max(1, config.chunk_tokens * num_shards // num_rows)
        spec = _Spec(
            z_loss=config.z_loss,
            label_smoothing=config.label_smoothing,
            softcap=model.config.logit_softcap,
            vocab_size=model.config.vocab_size,
            num_chunks=math.ceil(length / chunk_len),
            num_shards=num_shards,
            dot_general=model.recipe.dot_general,
            constrain=model.constrain,
        )
        sums: _Sums = _xent(spec, h_BTD, model.head_DV(), batch.targets, batch.loss_weights)
        count = jnp.sum(batch.loss_weights)
        metric_sums = {"nll": (sums.nll, count), "accuracy": (sums.correct, count)}
        if config.z_loss:
            metric_sums["z_loss"] = (sums.z, count)
        return LossSums(sums.loss, count, metric_sums)

    return loss


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What is compiled in."""

    z_loss: float
    label_smoothing: float
    softcap: float | None
    vocab_size: int  # the head may have more columns: padding, which has no probability
    num_chunks: int
    num_shards: int
    dot_general: Callable[..., jax.Array]
    constrain: Callable[[jax.Array, str], jax.Array]


class _Sums(NamedTuple):
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
def _xent(spec: _Spec, h_BTD, head_DV, targets_BT, weights_BT) -> _Sums:
    """The sums without a gradient; `_xent_forward` makes both."""
    head_DV = spec.constrain(head_DV, "DV")  # gathered once, ahead of the loop

    def visit(sums_B: _Sums, chunk: _Chunk):
        return _added(sums_B, _sums_B(spec, _logits(spec, chunk, head_DV), chunk)), None

    chunks = _chunks(spec, h_BTD, targets_BT, weights_BT)
    sums_B, _ = lax.scan(visit, _zero_sums(h_BTD), chunks)
    return _over_rows(sums_B)


def _xent_forward(spec: _Spec, h_BTD, head_DV, targets_BT, weights_BT):
    head_DV = spec.constrain(head_DV, "DV")

    def visit(carry: tuple[_Sums, jax.Array], chunk: _Chunk):
        sums_B, dhead = carry
        logits = _logits(spec, chunk, head_DV)
        dlogits_BTV = _dlogits(spec, logits, chunk).astype(head_DV.dtype)
        dh_BTD = spec.dot_general(
            dlogits_BTV,
            head_DV,
            dimension_numbers=(((2,), (1,)), ((), ())),
            preferred_element_type=h_BTD.dtype,
        )
        # In this order of operands: the other makes XLA's CPU matmul transpose dlogits first.
        dhead += spec.dot_general(
            _by_shard(spec, _counted(chunk).astype(head_DV.dtype)),
            _by_shard(spec, dlogits_BTV),
            dimension_numbers=(((1, 2), (1, 2)), ((0,), (0,))),
            preferred_element_type=jnp.float32,
        )
        return (_added(sums_B, _sums_B(spec, logits, chunk)), dhead), dh_BTD

    dhead = jnp.zeros((spec.num_shards, *head_DV.shape), jnp.float32)
    chunks = _chunks(spec, h_BTD, targets_BT, weights_BT)
    (sums_B, dhead), dh_chunks = lax.scan(visit, (_zero_sums(h_BTD), dhead), chunks)
    # Rounded before the sum, as the gradients of the other weights are: half the traffic.
    dhead = dhead.astype(head_DV.dtype)
    dhead_DV = lax.reduce(dhead, jnp.zeros((), dhead.dtype), lax.add, (0,))
    return _over_rows(sums_B), (_unchunked(dh_chunks, h_BTD.shape[1]), dhead_DV)


def _xent_backward(spec: _Spec, grads, cotangents: _Sums):
    del spec
    scaled = ((g.astype(jnp.float32) * cotangents.loss).astype(g.dtype) for g in grads)
    return (*scaled, None, None)


_xent.defvjp(_xent_forward, _xent_backward)


# --- one chunk ---


class _Logits(NamedTuple):
    """Soft-capped logits of a chunk and what both loss and gradient need of them."""

    logits_BTV: jax.Array
    max_BT1: jax.Array
    exp_BTV: jax.Array  # exp(logit - max)
    sum_BT1: jax.Array  # of exp


def _logits(spec: _Spec, chunk: _Chunk, head_DV) -> _Logits:
    logits_BTV = spec.dot_general(
        _counted(chunk).astype(head_DV.dtype),
        head_DV,
        dimension_numbers=(((2,), (0,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    logits_BTV = spec.constrain(logits_BTV, "BTV")
    if spec.softcap is not None:
        logits_BTV = spec.softcap * jnp.tanh(logits_BTV / spec.softcap)
    possible_BTV = logits_BTV
    if logits_BTV.shape[-1] > spec.vocab_size:  # logits stay finite: the soft cap squares them
        possible_BTV = jnp.where(_inside(spec, logits_BTV), logits_BTV, -jnp.inf)
    max_BT1 = jnp.max(possible_BTV, axis=-1, keepdims=True)
    exp_BTV = jnp.exp(possible_BTV - max_BT1)
    return _Logits(logits_BTV, max_BT1, exp_BTV, jnp.sum(exp_BTV, axis=-1, keepdims=True))


def _counted(chunk: _Chunk) -> jax.Array:
    """Hidden states, 0 where the weight is: whatever filler holds, 0 · inf included, stays out."""
    return jnp.where((chunk.weights_BT != 0)[..., None], chunk.h_BTD, jnp.zeros_like(chunk.h_BTD))


def _sums_B(spec: _Spec, logits: _Logits, chunk: _Chunk) -> _Sums:
    """Per row: the sum over rows, and with it over the mesh, is left for the end."""
    targets_BT1, weights_BT1 = chunk.targets_BT[..., None], chunk.weights_BT[..., None]
    # NaN where a target is outside the vocabulary. Stays on its device where V is sharded.
    target_BT1 = jnp.take_along_axis(logits.logits_BTV, targets_BT1, axis=-1, mode="fill")
    inside_BT1 = (targets_BT1 >= 0) & (targets_BT1 < spec.vocab_size)
    target_BT1 = jnp.where(inside_BT1, target_BT1, jnp.nan)
    lse_BT1 = _lse(logits)
    counts_BT1 = weights_BT1 != 0

    def total(x_BT1: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(counts_BT1, weights_BT1 * x_BT1, 0.0), axis=(1, 2))

    nll_B, z_B = total(lse_BT1 - target_BT1), total(jnp.square(lse_BT1))
    correct_B = total((target_BT1 >= logits.max_BT1).astype(jnp.float32))
    loss_B = nll_B + spec.z_loss * z_B
    if spec.label_smoothing:
        loss_B += spec.label_smoothing * total(target_BT1 - _mean_logit(spec, logits))
    return _Sums(loss_B, nll_B, z_B, correct_B)


def _mean_logit(spec: _Spec, logits: _Logits) -> jax.Array:
    inside_BTV = _inside(spec, logits.logits_BTV)
    total_BT1 = jnp.sum(jnp.where(inside_BTV, logits.logits_BTV, 0.0), axis=-1, keepdims=True)
    return total_BT1 / spec.vocab_size


def _inside(spec: _Spec, logits_BTV: jax.Array) -> jax.Array:
    """Which columns are ids and not padding."""
    return lax.broadcasted_iota(jnp.int32, logits_BTV.shape, 2) < spec.vocab_size


def _dlogits(spec: _Spec, logits: _Logits, chunk: _Chunk) -> jax.Array:
    """d loss / d logits before the soft cap: weight · ((1 + 2 · z_loss · lse) · p - label)."""
    vocabulary = lax.broadcasted_iota(jnp.int32, logits.logits_BTV.shape, 2)
    hit_BTV = vocabulary == chunk.targets_BT[..., None]
    p_scale_BT1 = (1 + 2 * spec.z_loss * _lse(logits)) / logits.sum_BT1
    labels_BTV = hit_BTV.astype(jnp.float32)
    if spec.label_smoothing:
        evenly_BTV = _inside(spec, labels_BTV).astype(jnp.float32) / spec.vocab_size
        labels_BTV += spec.label_smoothing * (evenly_BTV - labels_BTV)
    dlogits_BTV = logits.exp_BTV * p_scale_BT1 - labels_BTV
    if spec.softcap is not None:
        dlogits_BTV *= 1 - jnp.square(logits.logits_BTV / spec.softcap)
    return dlogits_BTV * chunk.weights_BT[..., None]


def _lse(logits: _Logits) -> jax.Array:
    return logits.max_BT1 + jnp.log(logits.sum_BT1)


def _zero_sums(h_BTD: jax.Array) -> _Sums:
    zeros_B = jnp.zeros(h_BTD.shape[:1], jnp.float32)
    return _Sums(zeros_B, zeros_B, zeros_B, zeros_B)


def _over_rows(sums_B: _Sums) -> _Sums:
    return jax.tree.map(jnp.sum, sums_B)


def _added(a: _Sums, b: _Sums) -> _Sums:
    return jax.tree.map(jnp.add, a, b)


# --- chunks and shards ---


def _chunks(spec: _Spec, *arrays: Array) -> _Chunk:
    """[B, T, …] as [chunk, B, position in it, …]: chunk j takes positions j, j + num_chunks, …"""

    def split(x: Array) -> jax.Array:
        padding = -x.shape[1] % spec.num_chunks  # of weight 0
        x = jnp.pad(x, [(0, padding if axis == 1 else 0) for axis in range(x.ndim)])
        x = x.reshape(x.shape[0], -1, spec.num_chunks, *x.shape[2:])
        return jnp.moveaxis(x, 2, 0)

    return _Chunk(*map(split, arrays))


def _unchunked(chunks: jax.Array, length: int) -> jax.Array:
    x = jnp.moveaxis(chunks, 0, 2)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def _by_shard(spec: _Spec, x: jax.Array) -> jax.Array:
    """[B, …] as [shard, B / shards, …]."""
    return x.reshape(spec.num_shards, -1, *x.shape[1:])


def _num_batch_shards(constrain: Any, num_rows: int) -> int:
    """How many ways the model's mesh, if it has one, splits the rows of a batch."""
    mesh = getattr(constrain, "mesh", None)
    if mesh is None:
        return 1
    return batch_shards(mesh) if num_rows % batch_shards(mesh) == 0 else 1
