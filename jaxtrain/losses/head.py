"""The output head over one chunk of positions at a time: what all losses over a vocabulary share.

A loss scans over chunks, so that float32 logits exist for one chunk only, and a custom gradient
makes the logits' gradient by hand, chunk by chunk as well. The pieces, in the order of use:

    head = head_of(model, num_rows)                  what is compiled in; hashable, one per model
    n = num_chunks(head, chunk_tokens, num_rows, length)
    w_DV = head.gather(model.head_DV())              once, ahead of the loop
    chunks = split_positions(n, x_BT…)               [n, B, T / n, …] of each array, to scan over
      h_BTD = counted(h_BTD, weights_BT)             filler's states out
      logits_BTV = head.logits(h_BTD, w_DV)          float32, soft-capped
      norm = head.normalise(logits_BTV)              max, exp and its sum; lse(norm)
      target_BT1 = head.target_logits(logits_BTV, targets_BT)    NaN outside the vocabulary
      d_BTV = head.uncap(logits_BTV, d_BTV)          through the soft cap; then to w_DV.dtype
      dh_BTD = head.d_hidden(d_BTV, w_DV, dtype)
      dhead += head.d_head(h_BTD, d_BTV)             from head.zero_d_head(w_DV)
    join_positions(dh_chunks, length)                back to [B, T, D]
    dhead_DV = head.reduce_d_head(dhead, dtype)      once, behind the loop

Two models on the same chunks (a teacher and its student) take a `Head` each and one `n`: their
widths, number formats and meshes may differ, their positions do not.

A chunk takes every n-th position of each row, so that chunks keep whatever sharding rows and
positions have. Each shard of the batch adds up a head gradient of its own, and these are added
over the mesh once, behind the last chunk, instead of once per chunk.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int

from jaxtrain.parallel.mesh import batch_shards
from jaxtrain.types import Array

#: The default of every loss's `chunk_tokens`, and what it says of it.
CHUNK_TOKENS = 1024
CHUNK_TOKENS_DOC = (
    "Tokens per device whose float32 logits exist at a time (fewer: less memory; GPUs: 2048 or "
    "more, so that adding up the head's gradient costs little beside the matmuls)."
)


class Normaliser(NamedTuple):
    """What turns a chunk's logits into probabilities."""

    max_BT1: jax.Array
    exp_BTV: jax.Array  # exp(logit - max), 0 on padding of the vocabulary
    sum_BT1: jax.Array  # of exp


@dataclasses.dataclass(frozen=True)
class Head:
    """What a model's head needs to be known when compiling."""

    softcap: float | None
    vocab_size: int  # the head may have more columns: padding, which has no probability
    num_shards: int  # ways in which the mesh splits the rows of a batch
    grad_reduce_dtype: type  # of the sum over them
    dot_general: Callable[..., jax.Array]
    constrain: Callable[[jax.Array, str], jax.Array]

    def gather(self, head_DV: Float[Array, "D V"]) -> jax.Array:
        """The head as it multiplies: gathered over the axes that only store it."""
        return self.constrain(head_DV, "DV")

    def logits(self, h_BTD: Float[Array, "B T D"], head_DV: Float[Array, "D V"]) -> jax.Array:
        """Float32 logits of a chunk, soft-capped; those of padding are finite and mean nothing."""
        logits_BTV = self.dot_general(
            h_BTD.astype(head_DV.dtype),
            head_DV,
            dimension_numbers=(((2,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        logits_BTV = self.constrain(logits_BTV, "BTV")
        if self.softcap is not None:
            logits_BTV = self.softcap * jnp.tanh(logits_BTV / self.softcap)
        return logits_BTV

    def normalise(self, logits_BTV: Float[Array, "B T V"]) -> Normaliser:
        """Over the vocabulary without its padding."""
        if logits_BTV.shape[-1] > self.vocab_size:
            logits_BTV = jnp.where(self.inside(logits_BTV), logits_BTV, -jnp.inf)
        max_BT1 = jnp.max(logits_BTV, axis=-1, keepdims=True)
        exp_BTV = jnp.exp(logits_BTV - max_BT1)
        return Normaliser(max_BT1, exp_BTV, jnp.sum(exp_BTV, axis=-1, keepdims=True))

    def inside(self, x_BTV: Float[Array, "B T V"]) -> jax.Array:
        """Which columns are ids and not padding."""
        return lax.broadcasted_iota(jnp.int32, x_BTV.shape, 2) < self.vocab_size

    def target_logits(
        self, logits_BTV: Float[Array, "B T V"], targets_BT: Int[Array, "B T"]
    ) -> jax.Array:
        """[B, T, 1]; NaN where a target is outside the vocabulary."""
        targets_BT1 = targets_BT[..., None]
        # Stays on its device where V is sharded.
        target_BT1 = jnp.take_along_axis(logits_BTV, targets_BT1, axis=-1, mode="fill")
        inside_BT1 = (targets_BT1 >= 0) & (targets_BT1 < self.vocab_size)
        return jnp.where(inside_BT1, target_BT1, jnp.nan)

    def uncap(
        self, logits_BTV: Float[Array, "B T V"], dlogits_BTV: Float[Array, "B T V"]
    ) -> jax.Array:
        """The gradient with respect to logits before the soft cap."""
        if self.softcap is None:
            return dlogits_BTV
        return dlogits_BTV * (1 - jnp.square(logits_BTV / self.softcap))

    def d_hidden(
        self, dlogits_BTV: Float[Array, "B T V"], head_DV: Float[Array, "D V"], dtype: Any
    ) -> jax.Array:
        """The gradient with respect to hidden states; `dlogits_BTV` has the head's dtype."""
        return self.dot_general(
            dlogits_BTV,
            head_DV,
            dimension_numbers=(((2,), (1,)), ((), ())),
            preferred_element_type=dtype,
        )

    def zero_d_head(self, head_DV: Float[Array, "D V"]) -> jax.Array:
        """What `d_head` is added to: float32, one for each shard of the batch."""
        return jnp.zeros((self.num_shards, *head_DV.shape), jnp.float32)

    def d_head(self, h_BTD: Float[Array, "B T D"], dlogits_BTV: Float[Array, "B T V"]) -> jax.Array:
        """The gradient with respect to the head of each shard of the batch."""
        # In this order of operands: the other makes XLA's CPU matmul transpose dlogits first.
        return self.dot_general(
            self._by_shard(h_BTD.astype(dlogits_BTV.dtype)),
            self._by_shard(dlogits_BTV),
            dimension_numbers=(((1, 2), (1, 2)), ((0,), (0,))),
            preferred_element_type=jnp.float32,
        )

    def reduce_d_head(self, dhead: jax.Array, dtype: Any) -> jax.Array:
        """The sum over the shards of the batch, rounded to `dtype` behind it."""
        dhead = dhead.astype(self.grad_reduce_dtype)
        return lax.reduce(dhead, jnp.zeros((), dhead.dtype), lax.add, (0,)).astype(dtype)

    def _by_shard(self, x: jax.Array) -> jax.Array:
        """[B, …] as [shard, B / shards, …]."""
        return x.reshape(self.num_shards, -1, *x.shape[1:])


def head_of(model: Any, num_rows: int) -> Head:
    """The `Head` of a model for batches of `num_rows`."""
    return Head(
        softcap=model.config.logit_softcap,
        vocab_size=model.config.vocab_size,
        num_shards=_num_batch_shards(model.constrain, num_rows),
        grad_reduce_dtype=model.recipe.grad_reduce_dtype,
        dot_general=model.recipe.dot_general,
        constrain=model.constrain,
    )


def lse(norm: Normaliser) -> jax.Array:
    """[B, T, 1]: log Σ_v exp(logit[v])."""
    return norm.max_BT1 + jnp.log(norm.sum_BT1)


def counted(h_BTD: Float[Array, "B T D"], weights_BT: Float[Array, "B T"]) -> jax.Array:
    """Hidden states, 0 where the weight is: whatever filler holds, 0 · inf included, stays out."""
    return jnp.where((weights_BT != 0)[..., None], h_BTD, jnp.zeros_like(h_BTD))


def num_chunks(head: Head, chunk_tokens: int, num_rows: int, length: int) -> int:
    """Chunks of `chunk_tokens` per device, but of at least one position of each row."""
    return math.ceil(length / max(1, chunk_tokens * head.num_shards // num_rows))


def split_positions(num: int, x: Array) -> jax.Array:
    """[B, T, …] as [chunk, B, position in it, …]: chunk j takes positions j, j + num, …

    The last chunks are filled up with zeros where `num` does not divide T: weight 0.
    """
    padding = -x.shape[1] % num
    x = jnp.pad(x, [(0, padding if axis == 1 else 0) for axis in range(x.ndim)])
    x = x.reshape(x.shape[0], -1, num, *x.shape[2:])
    return jnp.moveaxis(x, 2, 0)


def join_positions(chunks: jax.Array, length: int) -> jax.Array:
    """`split_positions` undone."""
    x = jnp.moveaxis(chunks, 0, 2)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def _num_batch_shards(constrain: Any, num_rows: int) -> int:
    """How many ways the model's mesh, if it has one, splits the rows of a batch."""
    mesh = getattr(constrain, "mesh", None)
    if mesh is None:
        return 1
    return batch_shards(mesh) if num_rows % batch_shards(mesh) == 0 else 1
