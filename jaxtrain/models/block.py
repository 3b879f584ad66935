"""A block: attention and feed-forward with their norms, each added to the residual stream."""

import functools
from collections.abc import Callable

import jax
from flax import nnx
from jaxtyping import Bool, Float, Int, Key

from jaxtrain.models import rope
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.gqa import Attention, GroupedQueryAttention
from jaxtrain.models.layers import Constrain, FeedForward, dropout, make_norm
from jaxtrain.models.low_precision import add_scaling
from jaxtrain.models.mla import LatentAttention
from jaxtrain.models.moe import ExpertFeedForward
from jaxtrain.precision.recipe import Recipe


class Block(nnx.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)); or x + norm(attention(x)), or both
    norms, or norm(x + attention(x)): config.norm_placement.

    Args:
      dense: has the dense feed-forward also where the config has experts.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        recipe: Recipe,
        constrain: Constrain,
        dense: bool = False,
    ) -> None:
        self.rate = config.dropout
        self.constrain = constrain
        self.has_pre_norms = config.norm_placement in ("pre", "both")
        self.has_post_norms = config.norm_placement in ("post", "both")
        self.norms_residual = config.norm_placement == "residual"
        norm = functools.partial(make_norm, config, config.d_model)
        if self.has_pre_norms:
            self.attention_norm, self.ffn_norm = norm(), norm()
        if self.has_post_norms or self.norms_residual:
            self.attention_post_norm, self.ffn_post_norm = norm(), norm()
        make = {"rngs": rngs, "recipe": recipe, "constrain": constrain}
        latent = config.kv_latent_dim is not None
        kind = LatentAttention if latent else GroupedQueryAttention
        self.attention: Attention = kind(config, **make)
        is_dense = dense or config.num_experts is None
        self.ffn = (FeedForward if is_dense else ExpertFeedForward)(config, **make)
        add_scaling(self, recipe, config)

    def __call__(
        self,
        x_BTD: Float[jax.Array, "B T D"],
        rotation: rope.Rotation,
        segment_ids_BT: Int[jax.Array, "B T"] | None,
        rng: Key[jax.Array, ""] | None,
        *,
        window: int | None,
        implementation: str,
        is_token_BT: Bool[jax.Array, "B T"] | None = None,
    ) -> Float[jax.Array, "B T D"]:
        """The block's output; `rng` None switches dropout off.

        Args:
          is_token_BT: what counts as load of experts: all but filler; None: everything.
        """
        attention = functools.partial(
            self.attention,
            rotation=rotation,
            segment_ids_BT=segment_ids_BT,
            window=window,
            implementation=implementation,
        )
        return self.around(x_BTD, attention, rng, is_token_BT)

    def around(
        self,
        x_BTD: Float[jax.Array, "B T D"],
        attention: Callable[[jax.Array], jax.Array],
        rng: Key[jax.Array, ""] | None = None,
        is_token_BT: Bool[jax.Array, "B T"] | None = None,
    ) -> Float[jax.Array, "B T D"]:
        """The block with `attention` in the place of its own (decoding attends to a cache)."""
        rngs = (None, None) if rng is None else tuple(jax.random.split(rng))
        out_BTD = attention(self.attention_norm(x_BTD) if self.has_pre_norms else x_BTD)
        if self.has_post_norms:
            out_BTD = self.attention_post_norm(out_BTD)
        x_BTD = self.constrain(x_BTD + dropout(out_BTD, self.rate, rngs[0]), "BTD")
        if self.norms_residual:
            x_BTD = self.attention_post_norm(x_BTD)
        ffn_in_BTD = self.ffn_norm(x_BTD) if self.has_pre_norms else x_BTD
        if isinstance(self.ffn, ExpertFeedForward):
            out_BTD = self.ffn(ffn_in_BTD, is_token_BT)
        else:
            out_BTD = self.ffn(ffn_in_BTD)
        if self.has_post_norms:
            out_BTD = self.ffn_post_norm(out_BTD)
        x_BTD = self.constrain(x_BTD + dropout(out_BTD, self.rate, rngs[1]), "BTD")
        return self.ffn_post_norm(x_BTD) if self.norms_residual else x_BTD
