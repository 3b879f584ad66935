"""Mixture of experts: experts compute what a router gives them.

    y = Σ weight · expert(x)  +  shared(x)          over the k experts that `router.py` chose

The router knows nothing of how its choice is carried out. `dispatch.py` has three ways:

    dense      every expert computes every token, and the weights of those that were not chosen are
               0: exact, and E / k times the work
    capacity   each expert takes the first `capacity` of a row's assignments; what is beyond is
               dropped, counted, and its token goes on with its other experts
    dropless   tokens are sorted by expert, and each computes its own: exact, and no more work than
               there is
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Bool, Float

from jaxtrain.measured import Measuring, Total
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.dispatch import MATRICES, Experts, dispatch
from jaxtrain.models.expert_weights import matrix_name
from jaxtrain.models.layers import (
    Constrain,
    FeedForward,
    add_bias,
    constant,
    gated,
    project,
    weight,
)
from jaxtrain.models.low_rank import LowRank
from jaxtrain.models.router import Router, Routing
from jaxtrain.precision.quantized_weight import QuantizedWeight
from jaxtrain.precision.recipe import Recipe


class ExpertFeedForward(Measuring):
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
        self.dropped = Total(None, extent=())
        if config.num_shared_experts:
            self.shared = FeedForward(
                config,
                rngs=rngs,
                recipe=recipe,
                constrain=constrain,
                width=config.num_shared_experts * f,
            )

    def __call__(
        self, x_BTD: Float[jax.Array, "B T D"], is_token_BT: Bool[jax.Array, "B T"] | None = None
    ) -> Float[jax.Array, "B T D"]:
        routing = self.router(x_BTD, is_token_BT)
        if self._is_dense:
            out_BTD = self._dense(x_BTD, weights_by_expert(routing))
        else:
            mesh = getattr(self.constrain, "mesh", None)
            out_BTD, dropped_B = dispatch(
                self.config, self.recipe, mesh, x_BTD, routing, is_token_BT, self._experts()
            )
            self.dropped.note(jnp.sum(dropped_B))
            out_BTD = self.constrain(out_BTD, "BTD")
        return out_BTD + self.shared(x_BTD) if self.config.num_shared_experts else out_BTD

    @property
    def _is_dense(self) -> bool:
        """Tokens are dropped only where it is counted: in training."""
        kind = self.config.expert_dispatch
        return kind == "dense" or (kind == "capacity" and self.dropped.get_value() is None)

    def _experts(self) -> Experts:
        names = Experts._fields if self.config.ffn_bias else MATRICES
        return Experts(**{name: getattr(self, name)[...] for name in names})

    def metrics(self) -> Mapping[str, jax.Array]:
        if self.config.expert_dispatch != "capacity":
            return {}
        total = jnp.sum(self.router.load_E[...], axis=-1)
        return {"moe/dropped_frac": self.dropped[...] / jnp.maximum(total, 1.0)}

    def _dense(self, x_BTD: jax.Array, weights_BTE: jax.Array) -> jax.Array:
        """Every expert on every token, summed with the weights by the last product."""
        dtype = self.recipe.compute_dtype
        up_BTEF = checkpoint_name(self._in(x_BTD, self.w_up_EDF, "b_up_EF"), "ffn_up")
        gate_BTEF = checkpoint_name(self._in(x_BTD, self.w_gate_EDF, "b_gate_EF"), "ffn_gate")
        hidden_BTEF = gated(self.config.activation, gate_BTEF, up_BTEF)
        # At most 1 each: training with capacities makes a delayed scale of hidden layers without
        # weights, under which larger ones would saturate.
        scale = self.config.router_scale
        weights_BTE = (weights_BTE / scale).astype(dtype)
        out_BTD = project(
            self.recipe,
            hidden_BTEF * weights_BTE[..., None],
            _matrices(self.w_down_EFD),
            num_contracted=2,
        )
        if self.config.ffn_bias:
            out_BTD += project(self.recipe, weights_BTE, self.b_down_ED[...])
        return out_BTD * scale

    def _in(self, x_BTD: jax.Array, w_EDF: nnx.Param, bias: str) -> jax.Array:
        out_BTEF = project(self.recipe, x_BTD, _matrices(w_EDF).swapaxes(0, 1))
        if self.config.ffn_bias:
            out_BTEF = add_bias(out_BTEF, getattr(self, bias))
        return self.constrain(out_BTEF, "BTEF")


def _matrices(w: nnx.Param) -> jax.Array | QuantizedWeight:
    """As a product of all tokens with all experts takes them."""
    value: Any = w[...]
    if isinstance(value, QuantizedWeight):
        return dataclasses.replace(value, name=matrix_name(value.name))
    return value.astype(jnp.float32) if isinstance(value, LowRank) else value


def weights_by_expert(routing: Routing) -> Float[jax.Array, "B T E"]:
    """The weight of every expert for each token, 0 where it was not chosen."""
    num_experts = routing.logits_BTE.shape[-1]
    is_chosen = jax.nn.one_hot(routing.expert, num_experts, dtype=jnp.float32)
    return jnp.sum(is_chosen * routing.weight[..., None], axis=-2)
