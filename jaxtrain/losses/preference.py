"""Preference losses: a policy learns from pairs of answers, chosen and rejected, to one prompt.

With π the policy, π_ref a frozen reference, |y| the trained tokens of an answer, every answer has
a reward r and each pair a loss of it, averaged over pairs:

    reward            r = β · s(log π(y|x) − log π_ref(y|x))     where there is a reference
    margin            h = r_chosen − r_rejected

    dpo        −log σ(h)                              Rafailov et al., arXiv 2305.18290, eq. 7
               label smoothing ε ("conservative DPO", Mitchell 2023):
               −(1 − ε) log σ(h) − ε log σ(−h)
    robust     (−(1 − ε) log σ(h) + ε log σ(−h)) / (1 − 2ε)
                                                      Chowdhury et al., arXiv 2403.00409, §3
    ipo        (h / β − 1 / (2β))²                    Azar et al., arXiv 2310.12036, eq. 17 (τ is β)
               with log ratios per token, as its authors ran it, so that β suits any length
    hinge      max(0, 1 − h)                          Zhao et al. (SLiC-HF), arXiv 2305.10425
    apo_zero   1 − σ(r_chosen) + σ(r_rejected)        D'Oosterlinck et al., arXiv 2408.06266, eq. 7
    apo_down   σ(r_chosen) + 1 − σ(h)                 likewise, eq. 8 (each plus a constant)
    simpo      −log σ(h − γ), r = β log π(y|x) / |y|  Meng et al., arXiv 2405.14734, eq. 6
    cpo        −log σ(h) + nll, r = β log π(y|x)      Xu et al., arXiv 2401.08417, eq. 3
    orpo       nll − β log σ(log odds(chosen) / odds(rejected)), odds = p / (1 − p),
               p = π(y|x)^(1/|y|)                     Hong et al., arXiv 2403.07691, eq. 6 and 7
    kto, apo_zero_unpaired: answers judged one by one, see kto.py

nll is the mean over the chosen answer's tokens; `nll_weight` adds it to any kind (with dpo: the
loss of Pang et al., arXiv 2404.19733).

s, by f-divergence (Wang et al., arXiv 2309.16240, table 1: f′ of the ratio; a constant, which
cancels in h, makes s(0) = 0 here), x = log ratio:

    reverse_kl  x        forward_kl  1 − e^−x        js  log 2 + log σ(x)
    alpha       (1 − e^−αx) / α                      0 < α < 1, between the first two

Length normalisation divides the log ratio by |y| (Lambert et al., Tülu 3, arXiv 2411.15124, with
β = 5).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxtrain.losses.answers import find_pairs, read_answers, wins
from jaxtrain.losses.head import CHUNK_TOKENS, CHUNK_TOKENS_DOC
from jaxtrain.losses.kto import Kto
from jaxtrain.options import option
from jaxtrain.types import AnswerBatch, Loss, LossSums

_UNPAIRED = ("kto", "apo_zero_unpaired")
_REFERENCE_FREE = ("simpo", "orpo", "cpo")
_SMOOTHED = ("dpo", "robust", "simpo", "cpo")
_PER_TOKEN = ("ipo", "simpo", "orpo")
_WITH_NLL = ("orpo", "cpo")
_KINDS = ("dpo", "robust", "ipo", "hinge", "apo_zero", "apo_down", *_REFERENCE_FREE, *_UNPAIRED)
_MAX_EXPONENT = 80.0  # float32 ends at e^88


@dataclasses.dataclass(frozen=True)
class PreferenceConfig:
    """Section `loss` of the config of preference learning."""

    kind: str = option("dpo", "Loss of a pair of answers, or of judged ones.", choices=_KINDS)
    beta: float | None = option(
        None,
        "How strongly log-probabilities count as reward (orpo: weight of the odds ratio); "
        "None: 0.1, simpo 2.",
    )
    label_smoothing: float = option(
        0.0, "dpo, robust, simpo, cpo: share of pairs taken to be labelled the wrong way round."
    )
    divergence: str = option(
        "reverse_kl",
        "dpo: divergence that holds the policy to the reference.",
        choices=("reverse_kl", "forward_kl", "js", "alpha"),
    )
    divergence_alpha: float = option(0.5, "Divergence alpha: in (0, 1), 0 like reverse_kl.")
    length_normalised: bool = option(
        False, "Log ratios per token instead of per answer (ipo: always)."
    )
    gamma: float = option(1.0, "simpo: margin in rewards between chosen and rejected answer.")
    nll_weight: float | None = option(
        None,
        "Weight of the chosen answer's mean negative log-likelihood; None: 1 in orpo and cpo, "
        "else 0.",
    )
    desirable_weight: float = option(1.0, "kto: weight of desirable answers.")
    undesirable_weight: float = option(1.0, "kto: weight of undesirable answers.")
    chunk_tokens: int = option(CHUNK_TOKENS, CHUNK_TOKENS_DOC, resumable=True)

    def __post_init__(self) -> None:
        kind = self.kind
        if kind not in _KINDS:
            raise ValueError(f"kind={kind!r} must be one of {', '.join(_KINDS)}.")
        for name in ("beta", "gamma", "nll_weight", "desirable_weight", "undesirable_weight"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value} must be >= 0 and finite.")
        if self.beta == 0:
            raise ValueError("beta=0.0 must be > 0.")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be in [0, 0.5).")
        if not 0 < self.divergence_alpha < 1:
            raise ValueError(f"divergence_alpha={self.divergence_alpha} must be in (0, 1).")
        if self.chunk_tokens < 1:
            raise ValueError(f"chunk_tokens={self.chunk_tokens} must be >= 1.")
        self._check_unused("label_smoothing", self.label_smoothing != 0, kind in _SMOOTHED)
        self._check_unused("divergence", self.divergence != "reverse_kl", kind == "dpo")
        self._check_unused(
            "length_normalised",
            self.length_normalised,
            self.needs_reference and self.answers == "pairs" and self.divergence == "reverse_kl",
        )
        self._check_unused("nll_weight", bool(self.nll_weight), kind not in _UNPAIRED)
        self._check_unused("gamma", self.gamma != 1, kind == "simpo")
        is_alpha = self.divergence == "alpha"
        self._check_unused("divergence_alpha", self.divergence_alpha != 0.5, is_alpha)
        for name in ("desirable_weight", "undesirable_weight"):
            self._check_unused(name, getattr(self, name) != 1, kind in _UNPAIRED)

    def _check_unused(self, name: str, is_set: bool, has_meaning: bool) -> None:
        if is_set and not has_meaning:
            raise ValueError(
                f"{name}={getattr(self, name)} has no meaning with kind={self.kind!r} and "
                f"divergence={self.divergence!r}; leave it out."
            )

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares the policy with a reference."""
        return self.kind not in _REFERENCE_FREE

    @property
    def answers(self) -> str:
        """The kind of store that the loss reads, as its tokenization says: "pairs" or "labels"."""
        return "labels" if self.kind in _UNPAIRED else "pairs"


def preference(config: PreferenceConfig) -> Loss:
    """The loss over an `AnswerBatch`; see the module for formulas.

    No dropout (`answers.py`). The first step of a kind with a reference starts at margin 0, dpo at
    loss log 2.

    Weight: pairs. Metrics, each a sum over pairs: "rewards/chosen", "rewards/rejected",
    "rewards/margin", "accuracy" (a margin > 0; a tie is half), "logprobs/chosen",
    "logprobs/rejected" (nats per answer), "gradient_weight" (σ(−h), with which the gradient of dpo
    counts a pair, arXiv 2305.18290, §4; simpo: σ(γ − h)) and, where it is in the loss, "nll".
    """
    beta = config.beta
    if beta is None:
        beta = 2.0 if config.kind == "simpo" else 0.1
    if config.kind in _UNPAIRED:
        return Kto(
            beta,
            config.desirable_weight,
            config.undesirable_weight,
            with_kl=config.kind == "kto",
            chunk_tokens=config.chunk_tokens,
        )
    nll_weight = config.nll_weight
    if nll_weight is None:
        nll_weight = float(config.kind in _WITH_NLL)

    def loss(model: Any, frozen: Mapping[str, Any], batch: AnswerBatch, rng: Any) -> LossSums:
        del rng
        pairs = find_pairs(batch.group_ids)
        answers = read_answers(
            model, frozen, batch, config.chunk_tokens, with_reference=config.needs_reference
        )
        lengths = pairs.split(answers.lengths, filler=1.0)
        logprobs, logratios = pairs.split(answers.logprobs), pairs.split(answers.logratios)
        rewards = tuple(
            beta * _score(config, *answer)
            for answer in zip(logprobs, logratios, lengths, strict=True)
        )
        losses_BQ = _losses(config, beta, *rewards)
        metrics = _metrics(config, rewards, logprobs)
        if nll_weight:
            metrics["nll"] = -logprobs[0] / lengths[0]
            losses_BQ += nll_weight * metrics["nll"]
        count = pairs.count()
        metric_sums = {name: (pairs.total(x_BQ), count) for name, x_BQ in metrics.items()}
        return LossSums(pairs.total(losses_BQ), count, metric_sums)

    return loss


def _score(
    config: PreferenceConfig, logprobs_BQ: jax.Array, logratios_BQ: jax.Array, lengths_BQ: jax.Array
) -> jax.Array:
    """The reward of an answer, divided by β."""
    if not config.needs_reference:
        x_BQ = logprobs_BQ
    elif config.divergence == "reverse_kl":
        x_BQ = logratios_BQ
    elif config.divergence == "js":
        x_BQ = math.log(2) + jax.nn.log_sigmoid(logratios_BQ)
    else:
        alpha = 1.0 if config.divergence == "forward_kl" else config.divergence_alpha
        x_BQ = -jnp.expm1(jnp.minimum(-alpha * logratios_BQ, _MAX_EXPONENT)) / alpha
    per_token = config.length_normalised or config.kind in _PER_TOKEN
    return x_BQ / lengths_BQ if per_token else x_BQ


def _losses(
    config: PreferenceConfig, beta: float, chosen_BQ: jax.Array, rejected_BQ: jax.Array
) -> jax.Array:
    """The loss of each pair from its rewards, without what `nll_weight` adds."""
    margin_BQ = chosen_BQ - rejected_BQ
    if config.kind == "ipo":
        return jnp.square((margin_BQ - 0.5) / beta)
    if config.kind == "hinge":
        return jax.nn.relu(1 - margin_BQ)
    if config.kind == "apo_zero":
        return jax.nn.sigmoid(-chosen_BQ) + jax.nn.sigmoid(rejected_BQ)
    if config.kind == "apo_down":
        return jax.nn.sigmoid(chosen_BQ) + jax.nn.sigmoid(-margin_BQ)
    if config.kind == "orpo":
        log_odds_BQ = _log_odds(chosen_BQ / beta) - _log_odds(rejected_BQ / beta)
        return -beta * jax.nn.log_sigmoid(log_odds_BQ)
    if config.kind == "simpo":
        margin_BQ -= config.gamma
    smoothing = config.label_smoothing
    right_BQ, wrong_BQ = jax.nn.log_sigmoid(margin_BQ), jax.nn.log_sigmoid(-margin_BQ)
    if config.kind == "robust":
        return (smoothing * wrong_BQ - (1 - smoothing) * right_BQ) / (1 - 2 * smoothing)
    return -(1 - smoothing) * right_BQ - smoothing * wrong_BQ


def _log_odds(logp: jax.Array) -> jax.Array:
    """log(p / (1 − p)), with log(1 − p) as exact where p is near 1 as elsewhere."""
    logp = jnp.minimum(logp, -1e-7)  # a certain answer, in float32
    return logp - jnp.where(
        logp > -math.log(2), jnp.log(-jnp.expm1(logp)), jnp.log1p(-jnp.exp(logp))
    )


def _metrics(
    config: PreferenceConfig, rewards: tuple[jax.Array, ...], logprobs: tuple[jax.Array, jax.Array]
) -> dict[str, jax.Array]:
    """What is reported of each pair."""
    margin_BQ = rewards[0] - rewards[1]
    gamma = config.gamma if config.kind == "simpo" else 0.0
    return {
        "rewards/chosen": rewards[0],
        "rewards/rejected": rewards[1],
        "rewards/margin": margin_BQ,
        "accuracy": wins(margin_BQ),
        "logprobs/chosen": logprobs[0],
        "logprobs/rejected": logprobs[1],
        "gradient_weight": jax.nn.sigmoid(gamma - margin_BQ),
    }
