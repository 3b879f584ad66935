"""What a teacher says of the next token: computed from its logits, or stored as its likeliest ids.

Both become `Outcomes` (see `divergence.py`) over ids that teacher and student share, the first
`num_shared` of either: what a vocabulary is padded with, or has beyond them, takes no part, and the
teacher's probabilities are normalised over the ids that count.

Of k < num_shared ids listed, the others are one outcome, the tail, or none ("renormalized").
"""

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int

from jaxtrain.losses.divergence import Outcomes, log_sum_exp
from jaxtrain.losses.head import CHUNK_TOKENS, head_of, join_positions, num_chunks, split_positions
from jaxtrain.types import Array

TAIL, RENORMALIZED = "tail", "renormalized"
RESTS: Final = (TAIL, RENORMALIZED)


class Sharing(NamedTuple):
    """Which outcomes a teacher's distribution has; static."""

    num_shared: int  # ids
    num_columns: int  # of the student's logits
    temperature: float
    rest: str  # one of RESTS


def computed(
    sharing: Sharing, logits_BTV: Float[Array, "B T V"], top_k: int | None
) -> tuple[Outcomes, Float[Array, "B T columns"]]:
    """The outcomes of a teacher's logits, and these as wide as the student's, -inf for no id.

    Args:
      top_k: lists the likeliest ids only; None: all.
    """
    logits_BTV = _shared(sharing, logits_BTV)
    logprobs_BTV = _log_softmax(logits_BTV / sharing.temperature)
    if top_k is None or top_k >= sharing.num_shared:
        listed_BTV = _is_shared(sharing, logits_BTV)
        return Outcomes(listed_BTV, logprobs_BTV, None), logits_BTV
    logprobs_BTK, ids_BTK = lax.top_k(logprobs_BTV, top_k)
    listed_BTV, known_BTV = _spread(sharing, ids_BTK, logprobs_BTK)
    if sharing.rest == RENORMALIZED:
        return Outcomes(listed_BTV, _log_softmax(known_BTV), None), logits_BTV
    tail_BT1 = log_sum_exp(jnp.where(listed_BTV, -jnp.inf, logprobs_BTV))
    return Outcomes(listed_BTV, known_BTV, tail_BT1), logits_BTV


def stored(
    sharing: Sharing, ids_BTK: Int[Array, "B T K"], logprobs_BTK: Float[Array, "B T K"]
) -> Outcomes:
    """The outcomes of what was stored (see `TeacherBatch`).

    NaN where nothing was, or an id is none that is shared. A tail is 1 - Σ p, which is known no
    better than to the spacing of the numbers stored; it is never taken to be less.
    """
    least_tail = float(jnp.finfo(logprobs_BTK.dtype).epsneg)
    logprobs_BTK = logprobs_BTK.astype(jnp.float32)
    is_entry_BTK = ~jnp.isneginf(logprobs_BTK)
    is_shared_BTK = (ids_BTK >= 0) & (ids_BTK < sharing.num_shared)
    is_right_BT1 = jnp.any(is_entry_BTK, -1, keepdims=True) & jnp.all(
        is_shared_BTK | ~is_entry_BTK, -1, keepdims=True
    )
    logprobs_BTK = jnp.where(is_right_BT1, logprobs_BTK, jnp.nan)
    ids_BTK = jnp.where(is_entry_BTK, ids_BTK, sharing.num_columns)  # a column that is not there
    ids_BTK = jnp.where(is_right_BT1, ids_BTK, 0)
    total_BT1 = log_sum_exp(logprobs_BTK)
    if sharing.rest == RENORMALIZED or ids_BTK.shape[-1] >= sharing.num_shared:
        listed_BTV, known_BTV = _spread(sharing, ids_BTK, logprobs_BTK - total_BT1)
        return Outcomes(listed_BTV, known_BTV, None)
    sum_BT1 = jnp.exp(total_BT1)
    rest_BT1 = jnp.maximum(1 - sum_BT1, least_tail)
    total_BT1 = jnp.log(sum_BT1 + rest_BT1)  # 0 but for rounding
    listed_BTV, known_BTV = _spread(sharing, ids_BTK, logprobs_BTK - total_BT1)
    tail_BT1 = jnp.log(rest_BT1) - total_BT1
    return Outcomes(listed_BTV, known_BTV, tail_BT1)


def topk_logprobs(
    model: Any,
    h_BTD: Float[Array, "B T D"],
    k: int,
    temperature: float = 1.0,
    *,
    num_shared: int | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> tuple[Int[Array, "B T K"], Float[Array, "B T K"]]:
    """The k likeliest next ids at each place, likeliest first, and their log-probabilities.

    Float32 logits exist for one chunk of positions at a time, as in the losses.

    Args:
      h_BTD: what `model.hidden` gives.
      temperature: of the distillation that is to use them.
      num_shared: ids that a student has too, over which they are normalised; None: all.

    Raises:
      ValueError: where there are not as many ids.
    """
    head = head_of(model, h_BTD.shape[0])
    num_shared = head.vocab_size if num_shared is None else num_shared
    if not 1 <= k <= num_shared <= head.vocab_size:
        raise ValueError(
            f"top_k={k} must be from 1 to the {num_shared} ids shared, and these at most the "
            f"teacher's {head.vocab_size}."
        )
    num = num_chunks(head, chunk_tokens, *h_BTD.shape[:2])
    head_DV = head.gather(model.head_DV())
    sharing = Sharing(num_shared, head_DV.shape[1], temperature, TAIL)

    def visit(states_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits_BTV = _shared(sharing, head.logits(states_BTD, head_DV))
        return tuple(lax.top_k(_log_softmax(logits_BTV / temperature), k))

    logprobs, ids = lax.map(visit, split_positions(num, h_BTD))
    length = h_BTD.shape[1]
    return join_positions(ids, length), join_positions(logprobs, length)


def _shared(sharing: Sharing, logits_BTV: jax.Array) -> jax.Array:
    """In as many columns as the student has, -inf where no id is shared."""
    logits_BTV = logits_BTV[..., : sharing.num_columns]
    missing = sharing.num_columns - logits_BTV.shape[-1]
    logits_BTV = jnp.pad(logits_BTV, [(0, 0), (0, 0), (0, missing)])
    return jnp.where(_is_shared(sharing, logits_BTV), logits_BTV, -jnp.inf)


def _is_shared(sharing: Sharing, x_BTV: jax.Array) -> jax.Array:
    return lax.broadcasted_iota(jnp.int32, x_BTV.shape, 2) < sharing.num_shared


def _spread(
    sharing: Sharing, ids_BTK: jax.Array, logprobs_BTK: jax.Array
) -> tuple[Bool[Array, "B T V"], Float[Array, "B T V"]]:
    """(which ids are listed, their log-probabilities) by column; an id that has none is left out.

    In columns, because a list would have to be looked up in the student's logits and its gradient
    added to them again at each place; where the vocabulary is split, columns stay where they are.
    """

    def put(ids_K: jax.Array, logprobs_K: jax.Array) -> jax.Array:
        columns_V = jnp.full(sharing.num_columns, -jnp.inf, jnp.float32)
        return columns_V.at[ids_K].set(logprobs_K, mode="drop")

    known_BTV = jax.vmap(jax.vmap(put))(ids_BTK, logprobs_BTK)
    return ~jnp.isneginf(known_BTV), known_BTV


def _log_softmax(x_BTV: jax.Array) -> jax.Array:
    return x_BTV - log_sum_exp(x_BTV)
