"""KTO: learning from answers that are each judged good or bad, without pairs.

Ethayarajh et al. 2024, arXiv 2402.01306, eq. 7: with r = log π(y|x) − log π_ref(y|x),

    z0 = max(0, mean of log π(y'|x) − log π_ref(y'|x) over mismatched y')     no gradient
    loss = λ_D · (1 − σ(β (r − z0)))    for a desirable answer
    loss = λ_U · (1 − σ(β (z0 − r)))    for an undesirable one

z0 estimates how far the policy has moved from the reference at all, from prompts with the answers
of other prompts. Here each group of answers brings its own mismatched ones and stands in one row,
so that the loss of an answer depends on no batch size, packing or microbatch. A group without
mismatched answers has z0 = 0, which is APO-zero for unpaired answers (D'Oosterlinck et al. 2024,
arXiv 2408.06266, eq. 7, one term at a time).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxtrain.losses.answers import read_answers
from jaxtrain.types import AnswerBatch, LossSums


@dataclasses.dataclass(frozen=True)
class Kto:
    """The loss over a store of "labels": values are +1 desirable, −1 undesirable, 0 mismatched.

    Weight: judged answers. Metrics: "rewards/chosen" and "logprobs/chosen" over the desirable,
    "rewards/rejected" and "logprobs/rejected" over the undesirable answers; over the judged ones
    "accuracy" (the reward β · r lies on the right side of β · z0) and "kl" (z0 in nats).
    """

    beta: float
    desirable_weight: float
    undesirable_weight: float
    with_kl: bool  # False: z0 = 0 whatever the groups hold
    chunk_tokens: int

    def __call__(
        self, model: Any, frozen: Mapping[str, Any], batch: AnswerBatch, rng: Any
    ) -> LossSums:
        del rng  # no dropout, see answers.py
        answers = read_answers(model, frozen, batch, self.chunk_tokens, with_reference=True)
        is_good_BQ = (batch.group_ids != 0) & (batch.values > 0)
        is_bad_BQ = (batch.group_ids != 0) & (batch.values < 0)
        z0_BQ = jnp.zeros_like(answers.logratios)
        if self.with_kl:
            z0_BQ = jax.lax.stop_gradient(_kl(answers.logratios, batch))
        sides_BQ = is_good_BQ.astype(jnp.float32) - is_bad_BQ.astype(jnp.float32)
        weights_BQ = jnp.where(is_good_BQ, self.desirable_weight, self.undesirable_weight)
        losses_BQ = weights_BQ * jax.nn.sigmoid(-sides_BQ * self.beta * (answers.logratios - z0_BQ))

        def sums(x_BQ: jax.Array, which_BQ: jax.Array) -> tuple[jax.Array, jax.Array]:
            total = jnp.sum(jnp.where(which_BQ, x_BQ, 0.0))
            return total, jnp.sum(which_BQ, dtype=jnp.float32)

        is_judged_BQ = is_good_BQ | is_bad_BQ
        rewards_BQ = self.beta * answers.logratios
        right_BQ = (jnp.sign(sides_BQ * (answers.logratios - z0_BQ)) + 1) / 2
        return LossSums(
            *sums(losses_BQ, is_judged_BQ),
            {
                "rewards/chosen": sums(rewards_BQ, is_good_BQ),
                "rewards/rejected": sums(rewards_BQ, is_bad_BQ),
                "logprobs/chosen": sums(answers.logprobs, is_good_BQ),
                "logprobs/rejected": sums(answers.logprobs, is_bad_BQ),
                "accuracy": sums(right_BQ, is_judged_BQ),
                "kl": sums(z0_BQ, is_judged_BQ),
            },
        )


def _kl(logratios_BQ: jax.Array, batch: AnswerBatch) -> jax.Array:
    """z0 of each answer's group; 0 where the group has no mismatched answers."""
    same_BQQ = batch.group_ids[:, :, None] == batch.group_ids[:, None, :]
    mismatched_BQQ = same_BQQ & (batch.values == 0)[:, None, :]
    total_BQ = jnp.sum(jnp.where(mismatched_BQQ, logratios_BQ[:, None, :], 0.0), axis=2)
    count_BQ = jnp.sum(mismatched_BQQ, axis=2, dtype=jnp.float32)
    return jnp.maximum(total_BQ / jnp.maximum(count_BQ, 1.0), 0.0)
