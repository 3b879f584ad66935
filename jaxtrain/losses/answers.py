"""What preference losses see of a row's answers: log-probabilities, ratios, lengths, pairs.

Columns q of all arrays here are the segments of a row (`AnswerBatch`); filler columns are 0.

Policy and reference run without dropout, both halves of a pair alike: the loss compares their
log-probabilities, and noise in one of them would be read as a preference.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from jaxtrain.losses.logprobs import segment_sums, token_logprobs
from jaxtrain.types import AnswerBatch, Array


class Answers(NamedTuple):
    """Sums over each answer's trained tokens, each token by its loss weight."""

    logprobs: Float[Array, "B Q"]  # nats, under the policy
    logratios: Float[Array, "B Q"]  # nats: log policy - log reference; 0 where none is asked for
    lengths: Float[Array, "B Q"]  # trained tokens


def read_answers(
    model: Any,
    frozen: Mapping[str, Any],
    batch: AnswerBatch,
    chunk_tokens: int,
    *,
    with_reference: bool,
) -> Answers:
    """The answers of a batch under the policy `model`.

    Args:
      with_reference: whether ratios are made: against `frozen["reference"]` if it is there, else
        against the batch's cached log-probabilities.
    """
    weights_BT = batch.tokens.loss_weights
    logprobs_BT = _logprobs_BT(model, batch, chunk_tokens)
    logprobs_BQ = _per_answer(weights_BT * logprobs_BT, batch)
    lengths_BQ = _per_answer(weights_BT, batch)
    if not with_reference:
        logratios_BQ = jnp.zeros_like(logprobs_BQ)
    elif "reference" in frozen:
        # Differences of tokens are added, not of sums, which may be a thousand times as large.
        reference_BT = jax.lax.stop_gradient(_logprobs_BT(frozen["reference"], batch, chunk_tokens))
        logratios_BQ = _per_answer(weights_BT * (logprobs_BT - reference_BT), batch)
    else:
        logratios_BQ = jnp.where(lengths_BQ > 0, logprobs_BQ - batch.reference, 0.0)
    return Answers(logprobs_BQ, logratios_BQ, lengths_BQ)


def answer_logprobs(model: Any, batch: AnswerBatch, chunk_tokens: int) -> Float[Array, "B Q"]:
    """The log-probability of each answer in nats: what a cached reference holds."""
    logprobs_BT = _logprobs_BT(model, batch, chunk_tokens)
    return _per_answer(batch.tokens.loss_weights * logprobs_BT, batch)


class Pairs(NamedTuple):
    """Column q describes the pair whose chosen answer is segment q + 1; filler elsewhere."""

    is_pair: Bool[Array, "B Q"]
    all_paired: Bool[Array, ""]  # False: a group of the batch is no pair

    def split(self, x_BQ: Float[Array, "B Q"], filler: float = 0.0) -> tuple[jax.Array, jax.Array]:
        """(of the chosen, of the rejected) answer; `filler` where there is no pair."""
        chosen_BQ = jnp.where(self.is_pair, x_BQ, filler)
        return chosen_BQ, jnp.where(self.is_pair, _shifted(x_BQ, -1), filler)

    def total(self, x_BQ: Float[Array, "B Q"]) -> jax.Array:
        """The sum over pairs; NaN if a group of the batch is no pair."""
        total = jnp.sum(jnp.where(self.is_pair, x_BQ, 0.0))
        return jnp.where(self.all_paired, total, jnp.nan)

    def count(self) -> jax.Array:
        """How many pairs there are."""
        return jnp.sum(self.is_pair, dtype=jnp.float32)


def find_pairs(group_ids_BQ: Int[Array, "B Q"]) -> Pairs:
    """Groups of two: the chosen answer, and behind it the rejected one.

    A group of another size is a fault of the batch source: every sum over pairs is then NaN.
    """
    starts_BQ = group_starts(group_ids_BQ)
    is_two_BQ = _shifted(group_ids_BQ, -1) == group_ids_BQ
    is_more_BQ = _shifted(group_ids_BQ, -2) == group_ids_BQ
    is_pair_BQ = starts_BQ & is_two_BQ & ~is_more_BQ
    return Pairs(is_pair_BQ, ~jnp.any(starts_BQ & ~is_pair_BQ))


def group_starts(group_ids_BQ: Int[Array, "B Q"]) -> Bool[Array, "B Q"]:
    """Whether a column holds the first answer of its group."""
    return (group_ids_BQ != 0) & (group_ids_BQ != _shifted(group_ids_BQ, 1))


def wins(margin: jax.Array) -> jax.Array:
    """1 where a margin is won, 0 where it is lost, half for a tie: what guessing gives."""
    return (jnp.sign(margin) + 1) / 2


def _logprobs_BT(model: Any, batch: AnswerBatch, chunk_tokens: int) -> jax.Array:
    tokens = batch.tokens
    h_BTD = model.hidden(tokens.inputs, tokens.positions, tokens.segment_ids, None)
    return token_logprobs(model, h_BTD, tokens, chunk_tokens)


def _per_answer(x_BT: Array, batch: AnswerBatch) -> jax.Array:
    return segment_sums(x_BT, batch.tokens.segment_ids, batch.group_ids.shape[1])


def _shifted(x_BQ: Array, by: int) -> jax.Array:
    """Columns moved to the right by `by`, to the left if negative; 0 moves in."""
    if by > 0:
        return jnp.pad(x_BQ, ((0, 0), (by, 0)))[:, : x_BQ.shape[1]]
    return jnp.pad(x_BQ, ((0, 0), (0, -by)))[:, -by:]
