"""Modules that predict further tokens (multi-token prediction, arXiv 2412.19437, section 2.2).

    x_i = [norm(embedding of token i + k), norm(h_i of the module before)] · W_join
    h_i = norm(block(x))        logits of token i + k + 1 = h_i · head

The first takes what the head takes of the model itself. Embedding and head are the model's own.
What each depth's cross-entropy is comes from `losses/mtp.py`; `DepthLosses` adds it to what is
minimised, with a weight that may change over the run.
"""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int, Key

from jaxtrain.measured import Measuring, Total
from jaxtrain.models import rope
from jaxtrain.models.block import Block
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.layers import Constrain, make_norm, project, weight
from jaxtrain.precision.recipe import Recipe


class PredictionModule(nnx.Module):
    """One depth of it: two norms, a projection of both, a block, a norm."""

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, recipe: Recipe, constrain: Constrain
    ) -> None:
        d, self.recipe = config.d_model, recipe
        norm = functools.partial(make_norm, config, d)
        self.embedding_norm, self.hidden_norm, self.final_norm = norm(), norm(), norm()
        # R, the width of both side by side: the embedding's half comes first.
        self.w_join_RD = weight(rngs, (2 * d, d), "RD", fan_in=2 * d)
        self.block = Block(config, rngs=rngs, recipe=recipe, constrain=constrain)

    def __call__(
        self,
        h_BTD: Float[jax.Array, "B T D"],
        embedded_BTD: Float[jax.Array, "B T D"],
        rotation: rope.Rotation,
        segment_ids_BT: Int[jax.Array, "B T"] | None,
        rng: Key[jax.Array, ""] | None,
        *,
        implementation: str,
        is_token_BT: Bool[jax.Array, "B T"] | None = None,
    ) -> Float[jax.Array, "B T D"]:
        """What the head and the next module take; arguments as of `Decoder.predict_further`."""
        block = functools.partial(
            self.block,
            rotation=rotation,
            segment_ids_BT=segment_ids_BT,
            rng=rng,
            window=None,
            implementation=implementation,
            is_token_BT=is_token_BT,
        )
        return self.around(h_BTD, embedded_BTD, block)

    def around(
        self,
        h_BTD: Float[jax.Array, "B T D"],
        embedded_BTD: Float[jax.Array, "B T D"],
        block: Callable[[jax.Array], jax.Array],
    ) -> Float[jax.Array, "B T D"]:
        """The module with `block` in the place of its own (decoding attends to a cache)."""
        both = [self.embedding_norm(embedded_BTD), self.hidden_norm(h_BTD)]
        x_BTD = project(self.recipe, jnp.concatenate(both, axis=-1), self.w_join_RD[...])
        return self.final_norm(block(x_BTD))


class DepthLosses(Measuring):
    """The depths' losses as one auxiliary term: λ / k · Σ_i loss_i / weights_i, i = 1 … k."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        by_depth = (config.num_mtp_layers,)
        self.loss_sums = Total(None, extent=by_depth)  # nats
        self.weight_sums = Total(None, extent=by_depth)

    @property
    def has_auxiliary(self) -> bool:
        return self.config.trains_mtp

    def auxiliary(self, whole: "DepthLosses") -> jax.Array:
        counts = whole.weight_sums[...]  # 0 where no document is long enough for a depth
        return jnp.mean(self.loss_sums[...] / jnp.where(counts > 0, counts, 1.0))

    def auxiliary_weight(self, num_updates: Int[jax.Array, ""]) -> jax.Array:
        weight = jnp.float32(self.config.mtp_weight)
        for step, later in self.config.mtp_weight_changes:
            weight = jnp.where(num_updates >= step, jnp.float32(later), weight)
        return weight

    def schedules(self, num_updates: Int[jax.Array, ""]) -> Mapping[str, jax.Array]:
        return {"mtp_weight": self.auxiliary_weight(num_updates)} if self.has_auxiliary else {}
