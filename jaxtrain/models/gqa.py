"""Attention layers: what all have in common, and grouped-query attention.

A layer turns its input into queries and *entries*: what later tokens need of each token, which is
also what a decoder caches. Multi-head latent attention is in `mla.py`; the product of queries with
keys and values in `attention.py`.
"""

import functools
import math
from collections.abc import Sequence

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Bool, Float, Int

from jaxtrain.models import attention, rope
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.layers import Constrain, RMSNorm, add_bias, constant, project, weight
from jaxtrain.precision.recipe import Recipe

#: Each has heads and a size of its own.
Entries = tuple[Float[jax.Array, "B T _ _"], ...]


class Attention(nnx.Module):
    """The interface of an attention layer."""

    def __init__(self, config: ModelConfig, recipe: Recipe, constrain: Constrain) -> None:
        self.config, self.recipe, self.constrain = config, recipe, constrain

    def heads(
        self, x_BTD: Float[jax.Array, "B T D"], rotation: rope.Rotation
    ) -> tuple[Float[jax.Array, "B T N H"], Entries]:
        """Queries, turned by their positions, and entries."""
        raise NotImplementedError

    def keys_and_values(
        self, entries: Entries
    ) -> tuple[Float[jax.Array, "B S K H"], Float[jax.Array, "B S K _"]]:
        """Heads of keys and of values from entries; the two may differ in size."""
        raise NotImplementedError

    def attend_cached(
        self,
        q_BNH: Float[jax.Array, "B N H"],
        cached: Sequence[Float[jax.Array, "B _ S _"]],
        visible_BS: Bool[jax.Array, "B S"],
    ) -> Float[jax.Array, "B N _"]:
        """One query for each row on the entries that a cache holds of it."""
        raise NotImplementedError

    def output(self, out_BTNH: Float[jax.Array, "B T N H"]) -> Float[jax.Array, "B T D"]:
        """What the heads found, back in the residual stream's width."""
        raise NotImplementedError

    @property
    def entry_shapes(self) -> tuple[tuple[int, int], ...]:
        """Heads and head size of each entry of a token."""
        raise NotImplementedError

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return self.config.attention_scale or self.config.head_dim**-0.5

    @property
    def sinks_N(self) -> Float[jax.Array, "N"] | None:
        """The score that each head's softmax has besides; None: no such."""
        return None

    def attend(
        self,
        q_BTNH: Float[jax.Array, "B T N H"],
        entries: Entries,
        segment_ids_BT: Int[jax.Array, "B T"] | None,
        *,
        window: int | None,
        implementation: str,
    ) -> Float[jax.Array, "B T N _"]:
        """Each row's queries on the entries of the same row."""
        k_BTKH, v_BTKH = self.keys_and_values(entries)
        return attention.attend(
            checkpoint_name(q_BTNH, "query"),
            checkpoint_name(k_BTKH, "key"),
            checkpoint_name(v_BTKH, "value"),
            segment_ids_BT=segment_ids_BT,
            causal=not self.config.bidirectional,
            window=window,
            softcap=self.config.attention_softcap,
            scale=self.scale,
            sinks_N=self.sinks_N,
            implementation=implementation,
            block=self.config.attention_block,
            mesh=getattr(self.constrain, "mesh", None),
        )

    def __call__(
        self,
        x_BTD: Float[jax.Array, "B T D"],
        rotation: rope.Rotation,
        segment_ids_BT: Int[jax.Array, "B T"] | None,
        *,
        window: int | None,
        implementation: str,
    ) -> Float[jax.Array, "B T D"]:
        q_BTNH, entries = self.heads(x_BTD, rotation)
        out_BTNH = self.attend(
            q_BTNH, entries, segment_ids_BT, window=window, implementation=implementation
        )
        return self.output(out_BTNH)


class GroupedQueryAttention(Attention):
    """Grouped-query attention with RoPE; optional biases, sinks and query/key norms."""

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, recipe: Recipe, constrain: Constrain
    ) -> None:
        super().__init__(config, recipe, constrain)
        d, n, k, h = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
        gain = 1 / math.sqrt(2 * config.num_layers)
        self.w_q_DNH = weight(rngs, (d, n, h), "DNH", fan_in=d)
        self.w_k_DKH = weight(rngs, (d, k, h), "DKH", fan_in=d)
        self.w_v_DKH = weight(rngs, (d, k, h), "DKH", fan_in=d)
        self.w_o_NHD = weight(rngs, (n, h, d), "NHD", fan_in=n * h, gain=gain)
        if config.attention_bias != "none":
            self.b_q_NH = constant(0.0, (n, h), "NH")
            self.b_k_KH = constant(0.0, (k, h), "KH")
            self.b_v_KH = constant(0.0, (k, h), "KH")
        if config.attention_bias == "all":
            self.b_o_D = constant(0.0, (d,), "D")
        if config.attention_sinks:
            self.sink_N = constant(0.0, (n,), "N")
        norm = functools.partial(RMSNorm, eps=config.norm_eps, offset=config.norm_offset)
        if config.qk_norm == "head":
            self.q_norm, self.k_norm = norm(h, axes="H"), norm(h, axes="H")
        elif config.qk_norm == "all":
            self.q_norm, self.k_norm = norm((n, h), axes="NH"), norm((k, h), axes="KH")

    def heads(
        self, x_BTD: Float[jax.Array, "B T D"], rotation: rope.Rotation
    ) -> tuple[Float[jax.Array, "B T N H"], Entries]:
        """Queries; the entries are keys, turned by their positions, and values."""
        config, recipe = self.config, self.recipe
        q_BTNH = project(recipe, x_BTD, self.w_q_DNH[...])
        k_BTKH = project(recipe, x_BTD, self.w_k_DKH[...])
        v_BTKH = project(recipe, x_BTD, self.w_v_DKH[...])
        if config.attention_bias != "none":
            q_BTNH = add_bias(q_BTNH, self.b_q_NH)
            k_BTKH = add_bias(k_BTKH, self.b_k_KH)
            v_BTKH = add_bias(v_BTKH, self.b_v_KH)
        if config.qk_norm != "none":
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        q_BTNH, k_BTKH = self.constrain(q_BTNH, "BTNH"), self.constrain(k_BTKH, "BTKH")
        if config.num_positions is None:
            turn = functools.partial(rope.rotate, by=rotation, interleaved=config.rope_interleaved)
            q_BTNH, k_BTKH = turn(q_BTNH), turn(k_BTKH)
        return q_BTNH, (k_BTKH, self.constrain(v_BTKH, "BTKH"))

    @property
    def entry_shapes(self) -> tuple[tuple[int, int], ...]:
        """Heads and head size of each entry of a token."""
        shape = (self.config.num_kv_heads, self.config.head_dim)
        return (shape, shape)

    def keys_and_values(
        self, entries: Entries
    ) -> tuple[Float[jax.Array, "B S K H"], Float[jax.Array, "B S K _"]]:
        """The entries themselves."""
        k_BSKH, v_BSKH = entries
        return k_BSKH, v_BSKH

    def attend_cached(
        self,
        q_BNH: Float[jax.Array, "B N H"],
        cached: Sequence[Float[jax.Array, "B _ S _"]],
        visible_BS: Bool[jax.Array, "B S"],
    ) -> Float[jax.Array, "B N _"]:
        """One query for each row on cached keys and values."""
        k_BKSH, v_BKSH = cached
        return attention.attend_cached(
            q_BNH,
            k_BKSH,
            v_BKSH,
            visible_BS,
            scale=self.scale,
            softcap=self.config.attention_softcap,
            sinks_N=self.sinks_N,
        )

    @property
    def sinks_N(self) -> Float[jax.Array, "N"] | None:
        """The score that each head's softmax has besides; None: no such."""
        return self.sink_N[...] if self.config.attention_sinks else None

    def output(self, out_BTNH: Float[jax.Array, "B T N H"]) -> Float[jax.Array, "B T D"]:
        """What the heads found, back in the residual stream's width."""
        out_BTNH = self.constrain(out_BTNH, "BTNH")
        out_BTD = project(self.recipe, out_BTNH, self.w_o_NHD[...], num_contracted=2)
        return add_bias(out_BTD, self.b_o_D) if self.config.attention_bias == "all" else out_BTD
