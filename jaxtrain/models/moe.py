"""Mixture of experts: a router that chooses, and experts that compute.

    scores = softmax(x · W)  or  sigmoid(x · W)                         float32
    chosen = the best k of scores (+ selection bias), within the best groups
    weights = scores of the chosen (/ their sum) · scale
    y = Σ weight · expert(x)  +  shared(x)

Mixtral (arXiv 2401.04088) and Qwen3: softmax, k of all. DeepSeek-V2 (arXiv 2405.04434): groups,
shared experts. DeepSeek-V3 (arXiv 2412.19437): sigmoid, selection bias. GPT-OSS (arXiv 2508.10925)
takes the softmax over the chosen logits, which is the softmax over all divided by the chosen ones'
sum.

The router knows nothing of how its choice is carried out. Here every expert computes every token,
and the weights of those that were not chosen are 0: exact, and E / k times the work.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Int

from jaxtrain.models.config import ModelConfig
from jaxtrain.models.layers import Constrain, FeedForward, constant, gated, project, weight
from jaxtrain.precision.recipe import Recipe

_TINY = 1e-20  # beside a sum of scores, which underflows where all sigmoids do


class Routing(NamedTuple):
    """Where each token goes."""

    expert: Int[jax.Array, "B T chosen"]
    weight: Float[jax.Array, "B T chosen"]  # float32
    logits_BTE: Float[jax.Array, "B T E"]  # float32


class Router(nnx.Module):
    """Chooses the experts of each token; float32 under every recipe."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        d, e = config.d_model, config.num_experts or 0
        self.w_DE = weight(rngs, (d, e), "DE", fan_in=d)
        if config.router_bias:
            self.b_E = constant(0.0, (e,), "E")
        if config.router_selection_bias:
            self.selection_bias_E = constant(0.0, (e,), "E")

    def __call__(self, x_BTD: Float[jax.Array, "B T D"]) -> Routing:
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


class ExpertFeedForward(nnx.Module):
    """Routed experts, and the shared ones beside them."""

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, recipe: Recipe, constrain: Constrain
    ) -> None:
        self.config, self.recipe, self.constrain = config, recipe, constrain
        d, e, f = config.d_model, config.num_experts or 0, config.expert_dim
        gain = 1 / math.sqrt(2 * config.num_layers)
        self.router = Router(config, rngs=rngs)
        self.w_gate_EDF = weight(rngs, (e, d, f), "EDF", fan_in=d)
        self.w_up_EDF = weight(rngs, (e, d, f), "EDF", fan_in=d)
        self.w_down_EFD = weight(rngs, (e, f, d), "EFD", fan_in=f, gain=gain)
        if config.ffn_bias:
            self.b_gate_EF = constant(0.0, (e, f), "EF")
            self.b_up_EF = constant(0.0, (e, f), "EF")
            self.b_down_ED = constant(0.0, (e, d), "ED")
        if config.num_shared_experts:
            self.shared = FeedForward(
                config,
                rngs=rngs,
                recipe=recipe,
                constrain=constrain,
                width=config.num_shared_experts * f,
            )

    def __call__(self, x_BTD: Float[jax.Array, "B T D"]) -> Float[jax.Array, "B T D"]:
        routing = self.router(x_BTD)
        out_BTD = self._dense(x_BTD, weights_by_expert(routing))
        return out_BTD + self.shared(x_BTD) if self.config.num_shared_experts else out_BTD

    def _dense(self, x_BTD: jax.Array, weights_BTE: jax.Array) -> jax.Array:
        """Every expert on every token, summed with the weights by the last product."""
        dtype = self.recipe.compute_dtype
        up_BTEF = checkpoint_name(self._in(x_BTD, self.w_up_EDF, "b_up_EF"), "ffn_up")
        gate_BTEF = checkpoint_name(self._in(x_BTD, self.w_gate_EDF, "b_gate_EF"), "ffn_gate")
        hidden_BTEF = gated(self.config.activation, gate_BTEF, up_BTEF)
        weights_BTE = weights_BTE.astype(dtype)
        out_BTD = self.recipe.dot_general(
            hidden_BTEF * weights_BTE[..., None],
            self.w_down_EFD[...].astype(dtype),
            dimension_numbers=(((2, 3), (0, 1)), ((), ())),
        )
        if self.config.ffn_bias:
            out_BTD += project(self.recipe, weights_BTE, self.b_down_ED[...])
        return out_BTD

    def _in(self, x_BTD: jax.Array, w_EDF: nnx.Param, bias: str) -> jax.Array:
        dtype = self.recipe.compute_dtype
        out_BTEF = self.recipe.dot_general(
            x_BTD.astype(dtype),
            w_EDF[...].astype(dtype),
            dimension_numbers=(((2,), (1,)), ((), ())),
        )
        if self.config.ffn_bias:
            out_BTEF += getattr(self, bias)[...].astype(dtype)[None, None]
        return self.constrain(out_BTEF, "BTEF")


def weights_by_expert(routing: Routing) -> Float[jax.Array, "B T E"]:
    """The weight of every expert for each token, 0 where it was not chosen."""
    num_experts = routing.logits_BTE.shape[-1]
    is_chosen = jax.nn.one_hot(routing.expert, num_experts, dtype=jnp.float32)
    return jnp.sum(is_chosen * routing.weight[..., None], axis=-2)
