"""The router of a mixture of experts: where tokens go, and what keeps experts in balance.

    scores = softmax(x · W)  or  sigmoid(x · W)                         float32
    chosen = the best k of scores (+ selection bias), within the best groups
    weights = scores of the chosen (/ their sum) · scale

Mixtral (arXiv 2401.04088) and Qwen3: softmax, k of all. DeepSeek-V2 (arXiv 2405.04434): groups,
shared experts. DeepSeek-V3 (arXiv 2412.19437): sigmoid, selection bias. GPT-OSS (arXiv 2508.10925)
takes the softmax over the chosen logits, which is the softmax over all divided by the chosen ones'
sum.

With f_e the fraction of assignments that go to expert e and P_e the mean of its scores (made to sum
to 1 for each token), each layer with experts adds to what is minimised

    balance   weight · E · Σ_e f_e · P_e     1 · weight where all is even (Fedus et al. 2021, arXiv
              2101.03961, eq. 4); f and P over the whole batch, or over each row and then the mean
              over rows (DeepSeek-V3, eq. 17)
    z         weight · mean of lse(logits)²  (Zoph et al. 2022, arXiv 2202.08906, eq. 5)

and after each applied update, by what the whole batch has measured,

    bias_e += rate · sign(mean load − load_e)        (DeepSeek-V3, section 2.1.2)

Filler is no token: it counts nowhere here.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from jaxtrain.measured import Measuring, Settled, Total
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.layers import constant, weight

_TINY = 1e-20  # beside a sum of scores, which underflows where all sigmoids do

#: Tokens per expert on average from which one that got none is called dead.
_ENOUGH_TOKENS = 16


class Routing(NamedTuple):
    """Where each token goes."""

    expert: Int[jax.Array, "B T chosen"]
    weight: Float[jax.Array, "B T chosen"]  # float32
    logits_BTE: Float[jax.Array, "B T E"]  # float32


class Router(Measuring):
    """Chooses the experts of each token; float32 under every recipe."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        d, e = config.d_model, config.num_experts or 0
        self.w_DE = weight(rngs, (d, e), "DE", fan_in=d)
        if config.router_bias:
            self.b_E = constant(0.0, (e,), "E")
        if config.router_selection_bias:
            self.selection_bias_E = Settled(jnp.zeros((e,), jnp.float32), axes="E")
        self.load_E = Total(None, extent=(e,))  # assignments
        self.score_E = Total(None, extent=(e,))  # made to sum to 1 for each token
        self.num_tokens, self.num_rows = Total(None, extent=()), Total(None, extent=())
        self.squared_lse, self.entropy = Total(None, extent=()), Total(None, extent=())
        if config.router_balance_over == "row":
            self.row_balance = Total(None, extent=())

    def __call__(
        self, x_BTD: Float[jax.Array, "B T D"], is_token_BT: Bool[jax.Array, "B T"] | None = None
    ) -> Routing:
        """Where tokens go; None: every position holds one."""
        config = self.config
        logits_BTE = jnp.einsum(
            "BTD,DE->BTE",
            x_BTD.astype(jnp.float32),
            self.w_DE[...],
            precision=jax.lax.Precision.HIGHEST,
        )
        if config.router_bias:
            logits_BTE += self.b_E[...][None, None]
        act = jax.nn.softmax if config.router_scores == "softmax" else jax.nn.sigmoid
        scores_BTE = act(logits_BTE)
        expert = self._chosen(jax.lax.stop_gradient(scores_BTE))
        weights = jnp.take_along_axis(scores_BTE, expert, axis=-1)
        if config.router_normalize:
            weights /= jnp.sum(weights, axis=-1, keepdims=True) + _TINY
        if self.load_E.get_value() is not None:
            self._measure(logits_BTE, scores_BTE, expert, is_token_BT)
        return Routing(expert, weights * config.router_scale, logits_BTE)

    def _chosen(self, scores_BTE: jax.Array) -> jax.Array:
        config = self.config
        if config.router_selection_bias:
            scores_BTE += jax.lax.stop_gradient(self.selection_bias_E[...])[None, None]
        if config.num_router_groups > 1:
            scores_BTE = jnp.where(self._in_best_groups(scores_BTE), scores_BTE, -jnp.inf)
        return jax.lax.top_k(scores_BTE, config.num_experts_per_token)[1]

    def _in_best_groups(self, scores_BTE: jax.Array) -> jax.Array:
        config = self.config
        num_groups = config.num_router_groups
        grouped = scores_BTE.reshape(*scores_BTE.shape[:2], num_groups, -1)
        best = jax.lax.top_k(grouped, 1 if config.router_scores == "softmax" else 2)[0]
        _, groups = jax.lax.top_k(jnp.sum(best, axis=-1), config.num_router_groups_per_token)
        is_best = jnp.any(jax.nn.one_hot(groups, num_groups, dtype=bool), axis=-2)
        return jnp.repeat(is_best, grouped.shape[-1], axis=-1)

    # --- balance ---

    def _measure(
        self,
        logits_BTE: jax.Array,
        scores_BTE: jax.Array,
        expert: jax.Array,
        is_token_BT: jax.Array | None,
    ) -> None:
        config, num_experts = self.config, logits_BTE.shape[-1]
        if is_token_BT is None:
            is_token_BT = jnp.ones(logits_BTE.shape[:2], bool)
        counts_BT = is_token_BT.astype(jnp.float32)
        chosen_BTE = jnp.sum(jax.nn.one_hot(expert, num_experts, dtype=jnp.float32), axis=-2)
        share_BTE = scores_BTE / (jnp.sum(scores_BTE, axis=-1, keepdims=True) + _TINY)
        # Filler may hold anything, NaN included: it is chosen away, not multiplied by 0.
        load_BE = jnp.sum(jnp.where(is_token_BT[..., None], chosen_BTE, 0.0), axis=1)
        share_BTE = jnp.where(is_token_BT[..., None], share_BTE, 0.0)
        score_BE, num_B = jnp.sum(share_BTE, axis=1), jnp.sum(counts_BT, axis=1)
        lse_BT = jnp.where(is_token_BT, jax.nn.logsumexp(logits_BTE, axis=-1), 0.0)
        logs_BTE = jnp.log(jnp.where(share_BTE > 0, share_BTE, 1.0))
        self.load_E.note(jnp.sum(load_BE, axis=0))
        self.score_E.note(jnp.sum(score_BE, axis=0))
        self.num_tokens.note(jnp.sum(num_B))
        self.num_rows.note(jnp.sum((num_B > 0).astype(jnp.float32)))
        self.squared_lse.note(jnp.sum(jnp.square(lse_BT)))
        self.entropy.note(-jax.lax.stop_gradient(jnp.sum(share_BTE * logs_BTE)))
        if config.router_balance_over == "row":
            per_row_B = _balance(load_BE, score_BE, num_B, config.num_experts_per_token)
            self.row_balance.note(jnp.sum(per_row_B))

    @property
    def has_auxiliary(self) -> bool:
        return self.config.router_balance_weight > 0 or self.config.router_z_weight > 0

    def auxiliary(self, whole: "Router") -> jax.Array:
        config = self.config
        total = jnp.zeros((), jnp.float32)
        if config.router_z_weight:
            total += config.router_z_weight * jnp.sum(_mean(self.squared_lse, whole.num_tokens))
        if not config.router_balance_weight:
            return total
        if config.router_balance_over == "row":
            balance = _mean(self.row_balance, whole.num_rows)
        else:
            balance = _balance(
                whole.load_E[...], self.score_E[...], whole.num_tokens[...],
                config.num_experts_per_token,
            )  # fmt: skip
        return total + config.router_balance_weight * jnp.sum(balance)

    def settle(self) -> None:
        if self.config.router_bias_rate:
            load_E = self.load_E[...]
            missing_E = jnp.sum(load_E, axis=-1, keepdims=True) - load_E.shape[-1] * load_E
            self.selection_bias_E[...] += self.config.router_bias_rate * jnp.sign(missing_E)

    def metrics(self) -> Mapping[str, jax.Array]:
        load_E, num_experts = self.load_E[...], self.load_E[...].shape[-1]
        total = jnp.sum(load_E, axis=-1)
        share_E = load_E / jnp.maximum(total, 1)[..., None]
        logs_E = jnp.log(jnp.where(share_E > 0, share_E, 1.0))
        is_dead_E = (load_E == 0) & (total >= _ENOUGH_TOKENS * num_experts)[..., None]
        found = {
            "moe/load_max": num_experts * jnp.max(share_E, axis=-1),
            "moe/load_entropy": -jnp.sum(share_E * logs_E, axis=-1) / math.log(max(num_experts, 2)),
            "moe/dead_experts": jnp.sum(is_dead_E, axis=-1, dtype=jnp.int32),
            "moe/router_entropy": _mean(self.entropy, self.num_tokens),
            "moe/router_z": _mean(self.squared_lse, self.num_tokens),
        }
        if self.config.router_selection_bias:
            found["moe/bias_range"] = jnp.ptp(self.selection_bias_E[...], axis=-1)
        return found


def _balance(
    load_E: jax.Array, score_E: jax.Array, num_tokens: jax.Array, num_chosen: int
) -> jax.Array:
    """E · Σ_e f_e · P_e from sums over `num_tokens`; 0 of no tokens. No gradient through f."""
    num = jnp.maximum(num_tokens, 1.0)[..., None]
    fraction_E = jax.lax.stop_gradient(load_E) / (num_chosen * num)
    return load_E.shape[-1] * jnp.sum(fraction_E * score_E / num, axis=-1)


def _mean(total: Total, count: Total) -> jax.Array:
    return total[...] / jnp.maximum(count[...], 1.0)
