"""Reward models: a scalar head learns to score answers from orders of them, or from judged steps.

An answer's score s is the head's output at its last token, wherever that stands: which one it is
comes from segment ids alone, so a score depends on no padding, packing or batch.

    order of k answers to one prompt, best first (Plackett 1975, Luce 1959; for reward models:
    Ouyang et al., arXiv 2203.02155, eq. 1, of which it is the listwise form):

        loss = Σ_{i<k} −log( e^s_i / (e^s_i + Σ_{j>i} e^(s_j + m_ij)) )

    of two answers it is Bradley–Terry with margin m (Touvron et al., arXiv 2307.09288, eq. 2):

        loss = −log σ(s_chosen − s_rejected − m)

    centring, so that scores of different prompts can be compared (Eisenstein et al., arXiv
    2312.09244, §3; of k answers, that of two with the same mean):

        loss += λ · (2 · mean_i s_i)²

    steps, each judged right (1) or wrong (0) (Lightman et al., arXiv 2305.20050, §2.6):

        loss = −y log σ(s) − (1 − y) log σ(−s)     at each step's last token
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from jaxtrain.losses.answers import group_starts, wins
from jaxtrain.losses.logprobs import segment_sums
from jaxtrain.options import option
from jaxtrain.types import AnswerBatch, Array, Loss, LossSums


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """Section `loss` of the config of reward models."""

    margin_scale: float = option(
        1.0, "Factor of the margins that rows of pairs bring; 0: they are not used."
    )
    centring: float = option(
        0.0, "Weight λ of the square by which the scores of a prompt are off 0; 0.01 is usual."
    )

    def __post_init__(self) -> None:
        for name in ("margin_scale", "centring"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value} must be >= 0 and finite.")


def reward(config: RewardConfig, answers: str = "pairs") -> Loss:
    """The loss over a store of "pairs", "ranks" or "steps" (see `process_reward`).

    Weight: groups, which are pairs or ranked lists. Metrics over ordered pairs, of which a list of
    k has k (k − 1) / 2: "accuracy" (the better answer scores higher; a tie is half), "margin" (of
    scores), "confidence" (mean probability given to the answer that scores higher: above the
    accuracy, the model is too sure) and "brier" (mean square of the probability given to the
    worse one); over groups "rewards/chosen" (the best answer's score), over all other answers
    "rewards/rejected".

    Raises:
      ValueError: for another kind of store.
    """
    if answers == "steps":
        return process_reward(config)
    if answers not in ("pairs", "ranks"):
        raise ValueError(f"answers={answers!r} must be one of pairs, ranks, steps.")
    # Values of a ranked list are scores on a scale of their own, not margins.
    margin_scale = config.margin_scale if answers == "pairs" else 0.0

    def loss(model: Any, frozen: Mapping[str, Any], batch: AnswerBatch, rng: Any) -> LossSums:
        del frozen
        scores_BQ = answer_scores(model, batch, rng)
        group_ids_BQ = batch.group_ids
        same_BQQ = (group_ids_BQ[:, :, None] == group_ids_BQ[:, None, :]) & (
            group_ids_BQ[:, :, None] != 0
        )
        columns = jnp.arange(group_ids_BQ.shape[1])
        worse_BQQ = same_BQQ & (columns[None, :, None] < columns[None, None, :])  # [better, worse]
        is_first_BQ = group_starts(group_ids_BQ)
        margins_BQQ = margin_scale * (batch.values[:, :, None] - batch.values[:, None, :])
        losses_BQ = _order_losses(scores_BQ, worse_BQQ, margins_BQQ)
        if config.centring:
            mean_BQ = _row_sums(same_BQQ, scores_BQ[:, None, :]) / jnp.maximum(
                jnp.sum(same_BQQ, axis=2, dtype=jnp.float32), 1.0
            )
            losses_BQ += jnp.where(is_first_BQ, config.centring * jnp.square(2 * mean_BQ), 0.0)
        alone = jnp.any(is_first_BQ & ~jnp.any(worse_BQQ, axis=2))  # no order: a fault
        return LossSums(
            jnp.where(alone, jnp.nan, jnp.sum(losses_BQ)),
            jnp.sum(is_first_BQ, dtype=jnp.float32),
            _order_metrics(scores_BQ, worse_BQQ, is_first_BQ, group_ids_BQ != 0),
        )

    return loss


def process_reward(config: RewardConfig) -> Loss:
    """Binary cross-entropy of each step's score, over a store of "steps".

    Weight: judged steps. Metrics over them: "accuracy" (the score's sign says the label),
    "confidence" and "brier" as in `reward`; "rewards/chosen" and "rewards/rejected", the mean
    scores of right and of wrong steps. A label that is neither 0 nor 1 makes the loss NaN.

    Raises:
      ValueError: for centring, which is of orders.
    """
    if config.centring:
        raise ValueError(
            f"config.loss.centring={config.centring} has no meaning for a store of steps, each of "
            "which has a label and so a scale; leave it out."
        )

    def loss(model: Any, frozen: Mapping[str, Any], batch: AnswerBatch, rng: Any) -> LossSums:
        del frozen
        tokens = batch.tokens
        h_BTD = model.hidden(tokens.inputs, tokens.positions, tokens.segment_ids, rng)
        scores_BT = model.scores(h_BTD)
        labels_BT, weights_BT = tokens.targets.astype(jnp.float32), tokens.loss_weights
        is_step_BT = weights_BT != 0
        scores_BT = jnp.where(is_step_BT, scores_BT, 0.0)
        sides_BT = jnp.where(labels_BT == 1, 1.0, jnp.where(labels_BT == 0, -1.0, jnp.nan))
        sides_BT = jnp.where(is_step_BT, sides_BT, 0.0)
        p_BT = jax.nn.sigmoid(sides_BT * scores_BT)  # of the label

        def sums(x_BT: Array, which_BT: Array = is_step_BT) -> tuple[jax.Array, jax.Array]:
            total = jnp.sum(jnp.where(which_BT, weights_BT * x_BT, 0.0))
            return total, jnp.sum(jnp.where(which_BT, weights_BT, 0.0))

        return LossSums(
            *sums(-jax.nn.log_sigmoid(sides_BT * scores_BT)),
            {
                "accuracy": sums(wins(sides_BT * scores_BT)),
                "confidence": sums(jax.nn.sigmoid(jnp.abs(scores_BT))),
                "brier": sums(jnp.square(1 - p_BT)),
                "rewards/chosen": sums(scores_BT, is_step_BT & (labels_BT == 1)),
                "rewards/rejected": sums(scores_BT, is_step_BT & (labels_BT == 0)),
            },
        )

    return loss


def answer_scores(model: Any, batch: AnswerBatch, rng: Any = None) -> Float[Array, "B Q"]:
    """The score of each answer, that of its last token; 0 on filler columns."""
    tokens = batch.tokens
    h_BTD = model.hidden(tokens.inputs, tokens.positions, tokens.segment_ids, rng)
    scores_BT = jnp.where(segment_ends(tokens.segment_ids), model.scores(h_BTD), 0.0)
    return segment_sums(scores_BT, tokens.segment_ids, batch.group_ids.shape[1])


def segment_ends(segment_ids_BT: Int[Array, "B T"]) -> jax.Array:
    """Whether a position holds the last token of its segment."""
    next_BT = jnp.pad(segment_ids_BT, ((0, 0), (0, 1)))[:, 1:]
    return (segment_ids_BT != 0) & (segment_ids_BT != next_BT)


def _order_losses(scores_BQ: jax.Array, worse_BQQ: jax.Array, margins_BQQ: jax.Array) -> jax.Array:
    """The term of each answer: −log of the share of its e^score among itself and the worse ones."""
    rivals_BQQ = scores_BQ[:, None, :] + margins_BQQ - scores_BQ[:, :, None]
    rivals_BQQ = jnp.where(worse_BQQ, rivals_BQQ, -jnp.inf)
    # log(e^0 + Σ e^rival), with the answer itself, at 0, in one more column.
    with_self = jnp.pad(rivals_BQQ, ((0, 0), (0, 0), (0, 1)))
    return jax.nn.logsumexp(with_self, axis=2)


def _row_sums(which_BQQ: jax.Array, x_BQQ: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(which_BQQ, x_BQQ, 0.0), axis=2)


def _order_metrics(
    scores_BQ: jax.Array, worse_BQQ: jax.Array, is_first_BQ: jax.Array, is_answer_BQ: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    gaps_BQQ = scores_BQ[:, :, None] - scores_BQ[:, None, :]

    def sums(x: jax.Array, which: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sum(jnp.where(which, x, 0.0)), jnp.sum(which, dtype=jnp.float32)

    return {
        "accuracy": sums(wins(gaps_BQQ), worse_BQQ),
        "margin": sums(gaps_BQQ, worse_BQQ),
        "confidence": sums(jax.nn.sigmoid(jnp.abs(gaps_BQQ)), worse_BQQ),
        "brier": sums(jnp.square(jax.nn.sigmoid(-gaps_BQQ)), worse_BQQ),
        "rewards/chosen": sums(scores_BQ, is_first_BQ),
        "rewards/rejected": sums(scores_BQ, is_answer_BQ & ~is_first_BQ),
    }
