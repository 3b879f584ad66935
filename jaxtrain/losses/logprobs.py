"""Log-probabilities of the trained tokens and of whole answers, for losses that compare answers.

    logprob[t] = logit[target] - log Σ_v exp(logit[v])

As in `xent.py`, float32 logits exist for one chunk of tokens at a time. What multiplies a token's
gradient is known only when all of a batch's log-probabilities are (a pair's two answers weigh each
other), so the backward pass visits the logits a second time: four matmuls with the head instead of
the three of cross-entropy.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int

from jaxtrain.losses.head import (
    Head,
    counted,
    head_of,
    join_positions,
    lse,
    num_chunks,
    split_positions,
)
from jaxtrain.types import Array, Batch


def token_logprobs(
    model: Any, h_BTD: Float[Array, "B T D"], batch: Batch, chunk_tokens: int
) -> Float[Array, "B T"]:
    """The log-probability of each target in nats, 0 where its loss weight is 0.

    Differentiable with respect to hidden states and head. A target outside the vocabulary is NaN.

    Args:
      chunk_tokens: tokens per device whose float32 logits exist at a time.
    """
    num_rows, length = batch.targets.shape
    head = head_of(model, num_rows)
    spec = _Spec(num_chunks(head, chunk_tokens, num_rows, length), head)
    return _logprobs(spec, h_BTD, model.head_DV(), batch.targets, batch.loss_weights)


def segment_sums(
    x_BT: Float[Array, "B T"], segment_ids_BT: Int[Array, "B T"], num_segments: int
) -> Float[Array, "B Q"]:
    """Column q: the sum of segment q + 1, 0 where the row has none.

    A masked sum instead of a scatter, whose order, and so whose last bits, would vary on GPUs.
    """
    columns_Q = lax.broadcasted_iota(jnp.int32, (1, 1, num_segments), 2) + 1
    mine_BTQ = segment_ids_BT[..., None] == columns_Q
    return jnp.sum(jnp.where(mine_BTQ, x_BT[..., None], 0.0), axis=1)


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What is compiled in."""

    num_chunks: int
    head: Head

    def split(self, *arrays: Array) -> tuple[jax.Array, ...]:
        return tuple(split_positions(self.num_chunks, x) for x in arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logprobs(spec: _Spec, h_BTD, head_DV, targets_BT, weights_BT) -> jax.Array:
    return _forward(spec, h_BTD, head_DV, targets_BT, weights_BT)[0]


def _forward(spec: _Spec, h_BTD, head_DV, targets_BT, weights_BT):
    gathered_DV = spec.head.gather(head_DV)  # once, ahead of the loop

    def visit(_, chunk):
        h_BTD, targets_BT, weights_BT = chunk
        logits_BTV = spec.head.logits(counted(h_BTD, weights_BT), gathered_DV)
        norm = spec.head.normalise(logits_BTV)
        logprobs_BT1 = spec.head.target_logits(logits_BTV, targets_BT) - lse(norm)
        logprobs_BT = jnp.where(weights_BT != 0, logprobs_BT1[..., 0], 0.0)
        return None, (logprobs_BT, norm.max_BT1, norm.sum_BT1)

    chunks = spec.split(h_BTD, targets_BT, weights_BT)
    _, (logprobs, maxima, sums) = lax.scan(visit, None, chunks)
    residuals = h_BTD, head_DV, targets_BT, weights_BT, maxima, sums
    return join_positions(logprobs, h_BTD.shape[1]), residuals


def _backward(spec: _Spec, residuals, cotangent_BT):
    h_BTD, head_DV, targets_BT, weights_BT, maxima, sums = residuals
    head, gathered_DV = spec.head, spec.head.gather(head_DV)

    def visit(dhead, chunk):
        (h_BTD, targets_BT, weights_BT, cotangent_BT), max_BT1, sum_BT1 = chunk
        states_BTD = counted(h_BTD, weights_BT)
        logits_BTV = head.logits(states_BTD, gathered_DV)
        hit_BTV = lax.broadcasted_iota(jnp.int32, logits_BTV.shape, 2) == targets_BT[..., None]
        p_BTV = jnp.exp(logits_BTV - max_BT1) / sum_BT1
        if logits_BTV.shape[-1] > head.vocab_size:
            p_BTV = jnp.where(head.inside(p_BTV), p_BTV, 0.0)
        dlogits_BTV = head.uncap(logits_BTV, hit_BTV.astype(jnp.float32) - p_BTV)
        scale_BT = jnp.where(weights_BT != 0, cotangent_BT, 0.0)
        dlogits_BTV = (dlogits_BTV * scale_BT[..., None]).astype(head_DV.dtype)
        dh_BTD = head.d_hidden(dlogits_BTV, gathered_DV, h_BTD.dtype)
        return dhead + head.d_head(states_BTD, dlogits_BTV), dh_BTD

    chunks = spec.split(h_BTD, targets_BT, weights_BT, cotangent_BT)
    dhead, dh_chunks = lax.scan(visit, head.zero_d_head(head_DV), (chunks, maxima, sums))
    dh_BTD = join_positions(dh_chunks, h_BTD.shape[1])
    return dh_BTD, head.reduce_d_head(dhead, head_DV.dtype), None, None


_logprobs.defvjp(_forward, _backward)
