"""How far a student's next-token distribution is from a teacher's, with the slope of it.

P is the teacher's distribution, Q the student's, both at one temperature τ:

    forward_kl       KL(P ‖ Q) = Σ P log(P / Q)          (Hinton et al. 2015, arXiv 1503.02531)
    reverse_kl       KL(Q ‖ P)                           (MiniLLM, arXiv 2306.08543)
    jensen_shannon   β KL(P ‖ M) + (1 − β) KL(Q ‖ M),    M = β P + (1 − β) Q
                     (GKD, arXiv 2306.13649, eq. 1; divided by β it tends to KL(P ‖ Q) for β → 0,
                     divided by 1 − β to KL(Q ‖ P) for β → 1)

A teacher may say something of some ids only. These are then outcomes of their own, and all others
either one outcome together, the tail, or none, with P and Q renormalised over the ids listed.

Slopes are written out instead of derived: with respect to log Q they are short, and nothing that is
masked out ever enters them.
"""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from jaxtrain.types import Array

FORWARD_KL, REVERSE_KL, JENSEN_SHANNON = "forward_kl", "reverse_kl", "jensen_shannon"
DIVERGENCES: Final = (FORWARD_KL, REVERSE_KL, JENSEN_SHANNON)


class Outcomes(NamedTuple):
    """A teacher's distribution: ids that are outcomes of their own, and perhaps all others as one.

    The student is compared over the same outcomes.
    """

    listed_BTV: Bool[Array, "B T V"]
    logprobs_BTV: Float[Array, "B T V"]  # of the ids listed; -inf elsewhere
    tail_BT1: Float[Array, "B T 1"] | None  # log-probability of all others; None: no outcome


class Comparison(NamedTuple):
    """At each place, in nats; `slope_BTV` is the gradient of the divergence."""

    divergence_BT1: Float[Array, "B T 1"]
    forward_kl_BT1: Float[Array, "B T 1"]
    slope_BTV: Float[Array, "B T V"]  # with respect to the student's scaled logits


def compare(
    kind: str,
    beta: float,
    teacher: Outcomes,
    scaled_BTV: Float[Array, "B T V"],
) -> Comparison:
    """The divergence of a student's distribution from a teacher's.

    Args:
      kind: one of DIVERGENCES.
      beta: of jensen_shannon, between 0 and 1.
      scaled_BTV: the student's logits divided by τ, -inf for ids that it does not share with the
        teacher.
    """
    listed_BTV = teacher.listed_BTV
    over_BTV = scaled_BTV
    if teacher.tail_BT1 is None:
        over_BTV = jnp.where(listed_BTV, scaled_BTV, -jnp.inf)
    lse_BT1 = log_sum_exp(over_BTV)
    logq_BTV = jnp.where(listed_BTV, scaled_BTV - lse_BT1, -jnp.inf)
    values, kls, slopes = _outcomes(kind, beta, teacher.logprobs_BTV, logq_BTV)
    value_BT1, kl_BT1, total_BT1 = map(_sum, (values, kls, slopes))
    if teacher.tail_BT1 is None:
        return Comparison(value_BT1, kl_BT1, slopes - jnp.exp(logq_BTV) * total_BT1)
    rest_BTV = jnp.where(listed_BTV, -jnp.inf, scaled_BTV)
    rest_BT1 = log_sum_exp(rest_BTV)
    tail = _outcomes(kind, beta, teacher.tail_BT1, rest_BT1 - lse_BT1)
    share_BTV = jnp.exp(rest_BTV - _finite(rest_BT1))  # of each id in the tail's probability
    slope_BTV = slopes + share_BTV * tail[2] - jnp.exp(scaled_BTV - lse_BT1) * (total_BT1 + tail[2])
    return Comparison(value_BT1 + tail[0], kl_BT1 + tail[1], slope_BTV)


def log_sum_exp(x: Float[Array, "*rest size"]) -> Float[Array, "*rest 1"]:
    """Over the last axis, which stays with size 1; -inf where all is."""
    largest = _finite(jnp.max(x, axis=-1, keepdims=True))
    return largest + jnp.log(jnp.sum(jnp.exp(x - largest), axis=-1, keepdims=True))


def _outcomes(
    kind: str, beta: float, logp: jax.Array, logq: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For each outcome: what it adds to the divergence and to KL(P ‖ Q), and d divergence / d logq.

    An outcome of probability 0 adds nothing where its probability is a factor; where it is not, the
    divergence is infinite, and so is what comes out.
    """
    p, q = jnp.exp(logp), jnp.exp(logq)
    kl = _times(p, logp, logq)
    if kind == FORWARD_KL:
        return kl, kl, -p
    if kind == REVERSE_KL:
        value = _times(q, logq, logp)
        return value, kl, value + q
    logm = jnp.logaddexp(jnp.log(beta) + logp, jnp.log1p(-beta) + logq)
    from_student = (1 - beta) * _times(q, logq, logm)
    return beta * _times(p, logp, logm) + from_student, kl, from_student


def _times(p: jax.Array, logp: jax.Array, logq: jax.Array) -> jax.Array:
    """P log(P / Q), 0 where P is."""
    counts = p > 0
    return p * (jnp.where(counts, logp, 0.0) - jnp.where(counts, logq, 0.0))


def _sum(x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=-1, keepdims=True)


def _finite(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isneginf(x), 0.0, x)
