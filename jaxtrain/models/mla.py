"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    c = norm(x · W_down)              the latent of a token, R numbers for all heads
    k = [c · W_k_up, rope(x · W_k_rope)]    v = c · W_v_up
    q = [.., rope(..)] of x · W_q, or of norm(x · W_q_down) · W_q_up

A key has a part of each head's own, without position, and one that RoPE turns and all heads share.
What later tokens need of a token, and what a decoder caches, is c and that shared part. A cached
latent is never expanded: q · (c W_k_up) = (q W_k_upᵀ) · c, so queries go into the latent space,
attend there as to one key head, and what they find comes out through W_v_up.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from jaxtrain.models import attention, rope
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.gqa import Attention, Entries
from jaxtrain.models.layers import Constrain, RMSNorm, project, weight
from jaxtrain.precision.recipe import Recipe

#: Of the norms of both latents, whatever the model's eps is (the published code).
LATENT_NORM_EPS = 1e-6


class LatentAttention(Attention):
    """Attention whose keys and values come from one latent for each token."""

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, recipe: Recipe, constrain: Constrain
    ) -> None:
        super().__init__(config, recipe, constrain)
        d, n, h, r = config.d_model, config.num_heads, config.head_dim, config.kv_latent_dim
        assert r is not None, config
        self.latent_dim, self.plain_dim = r, h - config.rope_dim
        v = config.value_dim
        gain = 1 / math.sqrt(2 * config.num_layers)
        norm = functools.partial(RMSNorm, eps=LATENT_NORM_EPS, axes="R")
        q = config.q_latent_dim
        if q is None:
            self.w_q_DNH = weight(rngs, (d, n, h), "DNH", fan_in=d)
        else:
            self.w_q_down_DR = weight(rngs, (d, q), "DR", fan_in=d)
            self.q_norm = norm(q)
            self.w_q_up_RNH = weight(rngs, (q, n, h), "RNH", fan_in=q)
        self.w_down_DR = weight(rngs, (d, r), "DR", fan_in=d)
        self.w_k_rope_DH = weight(rngs, (d, config.rope_dim), "DH", fan_in=d)
        self.norm = norm(r)
        self.w_k_up_RNH = weight(rngs, (r, n, self.plain_dim), "RNH", fan_in=r)
        self.w_v_up_RNH = weight(rngs, (r, n, v), "RNH", fan_in=r)
        self.w_o_NHD = weight(rngs, (n, v, d), "NHD", fan_in=n * v, gain=gain)

    def heads(
        self, x_BTD: Float[jax.Array, "B T D"], rotation: rope.Rotation
    ) -> tuple[Float[jax.Array, "B T N H"], Entries]:
        """Queries; one entry with a single head: the latent, then the shared part of the keys."""
        recipe = self.recipe
        if self.config.q_latent_dim is None:
            q_BTNH = project(recipe, x_BTD, self.w_q_DNH[...])
        else:
            latent_BTR = self.q_norm(project(recipe, x_BTD, self.w_q_down_DR[...]))
            q_BTNH = project(recipe, latent_BTR, self.w_q_up_RNH[...])
        turn = functools.partial(rope.rotate, by=rotation, interleaved=self.config.rope_interleaved)
        plain_BTNH, turned_BTNH = jnp.split(
            self.constrain(q_BTNH, "BTNH"), [self.plain_dim], axis=-1
        )
        q_BTNH = jnp.concatenate([plain_BTNH, turn(turned_BTNH)], axis=-1)
        latent_BTR = self.norm(project(recipe, x_BTD, self.w_down_DR[...]))
        shared_BTH = project(recipe, x_BTD, self.w_k_rope_DH[...])
        shared_BTKH = turn(shared_BTH[:, :, None])
        return q_BTNH, (jnp.concatenate([latent_BTR[:, :, None], shared_BTKH], axis=-1),)

    @property
    def entry_shapes(self) -> tuple[tuple[int, int], ...]:
        """Heads and head size of each entry of a token."""
        return ((1, self.latent_dim + self.config.rope_dim),)

    def keys_and_values(
        self, entries: Entries
    ) -> tuple[Float[jax.Array, "B S K H"], Float[jax.Array, "B S K _"]]:
        """Every head's keys and values, out of the latents."""
        latent_BSR, shared_BSH = jnp.split(entries[0][:, :, 0], [self.latent_dim], axis=-1)
        k_BSKH = project(self.recipe, latent_BSR, self.w_k_up_RNH[...])
        v_BSKH = project(self.recipe, latent_BSR, self.w_v_up_RNH[...])
        shape = (*k_BSKH.shape[:3], shared_BSH.shape[-1])
        k_BSKH = jnp.concatenate([k_BSKH, jnp.broadcast_to(shared_BSH[:, :, None], shape)], axis=-1)
        return self.constrain(k_BSKH, "BTKH"), self.constrain(v_BSKH, "BTKH")

    def attend_cached(
        self,
        q_BNH: Float[jax.Array, "B N H"],
        cached: Sequence[Float[jax.Array, "B _ S _"]],
        visible_BS: Bool[jax.Array, "B S"],
    ) -> Float[jax.Array, "B N _"]:
        """One query for each row on cached latents, which stay as they are."""
        plain_BNH, turned_BNH = jnp.split(q_BNH, [self.plain_dim], axis=-1)
        q_BNR = self._by_head(plain_BNH, self.w_k_up_RNH, 2)
        (entry_BKSH,) = cached
        out_BNR = attention.attend_cached(
            jnp.concatenate([q_BNR, turned_BNH], axis=-1),
            entry_BKSH,
            entry_BKSH,  # with the shared part as ballast: a slice would copy the cache
            visible_BS,
            scale=self.scale,
            softcap=self.config.attention_softcap,
        )[..., : self.latent_dim]
        return self._by_head(out_BNR, self.w_v_up_RNH, 0)

    def output(self, out_BTNH: Float[jax.Array, "B T N H"]) -> Float[jax.Array, "B T D"]:
        """What the heads found, back in the residual stream's width."""
        out_BTNH = self.constrain(out_BTNH, "BTNH")
        return project(self.recipe, out_BTNH, self.w_o_NHD[...], num_contracted=2)

    def _by_head(self, x: jax.Array, w_RNH: nnx.Param, contracted: int) -> jax.Array:
        """[B, N, ..] times each head's own matrix, over one of its dimensions."""
        dtype = self.recipe.compute_dtype
        out = self.recipe.dot_general(
            x.astype(dtype),
            w_RNH[...].astype(dtype),
            dimension_numbers=(((2,), (contracted,)), ((1,), (1,))),
        )
        return out.swapaxes(0, 1)
