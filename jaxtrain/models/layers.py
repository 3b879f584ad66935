"""The parts of a block: norm, attention, feed-forward.

Parameters are float32 `nnx.Param`s that carry their dimension letters (`axes`). Activations have
the recipe's compute dtype, norms are computed in float32. Every weight matmul goes through
`project`. Attention products are in `attention.py`, stacking and remat in `decoder.py`.

`constrain(x, letters)` pins an activation to the mesh; it comes from outside, and the letters are
all that a layer knows of it.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Int, Key

from jaxtrain.models import rope
from jaxtrain.models.attention import attend
from jaxtrain.models.config import ModelConfig
from jaxtrain.precision.recipe import Recipe

Constrain = Callable[[jax.Array, str], jax.Array]

_STD_OF_UNIT_NORMAL_CUT_AT_2 = 0.8796256610342398


def weight(
    rngs: nnx.Rngs, shape: tuple[int, ...], axes: str, *, fan_in: int, gain: float = 1.0
) -> nnx.Param:
    """A matrix drawn from a normal distribution cut at two of its standard deviations.

    Its standard deviation is gain / sqrt(fan_in) (LeCun et al. 1998, "Efficient BackProp"): a
    product of unit-variance inputs has unit variance at any width. Matrices that write to the
    residual stream have gain 1 / sqrt(2 · num_layers), so that the sum over all layers stays of
    order 1 (Radford et al. 2019, GPT-2). Norm scales start at 1, biases at 0.
    """
    unit = jax.random.truncated_normal(rngs.params(), -2.0, 2.0, shape, jnp.float32)
    scale = gain / math.sqrt(fan_in) / _STD_OF_UNIT_NORMAL_CUT_AT_2
    return nnx.Param(unit * jnp.float32(scale), axes=axes)


def constant(value: float, shape: tuple[int, ...], axes: str) -> nnx.Param:
    """A norm scale or a bias."""
    return nnx.Param(jnp.full(shape, value, jnp.float32), axes=axes)


def project(recipe: Recipe, x: jax.Array, w: jax.Array, num_contracted: int = 1) -> jax.Array:
    """Contracts the last dimensions of `x` with the first of `w`, in the compute dtype."""
    of_x = tuple(range(x.ndim - num_contracted, x.ndim))
    of_w = tuple(range(num_contracted))
    x, w = x.astype(recipe.compute_dtype), w.astype(recipe.compute_dtype)
    return recipe.dot_general(x, w, dimension_numbers=((of_x, of_w), ((), ())))


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x²) + eps) · scale (arXiv 1910.07467), in float32.

    The mean is over the dimensions of `shape`, the last ones of x. With `offset` it is (1 + scale).
    """

    def __init__(
        self, shape: int | tuple[int, ...], eps: float, axes: str, *, offset: bool = False
    ) -> None:
        self.eps, self.offset = eps, offset
        shape = (shape,) if isinstance(shape, int) else shape
        self.scale = constant(0.0 if offset else 1.0, shape, axes)

    def __call__(self, x: Float[jax.Array, "*rest size"]) -> Float[jax.Array, "*rest size"]:
        wide, scale = x.astype(jnp.float32), self.scale[...]
        over = tuple(range(x.ndim - scale.ndim, x.ndim))
        mean_square = jnp.mean(jnp.square(wide), axis=over, keepdims=True)
        scale = jnp.expand_dims(scale + 1 if self.offset else scale, tuple(range(over[0])))
        return (wide * jax.lax.rsqrt(mean_square + self.eps) * scale).astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with RoPE; optional biases and query/key norms."""

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, recipe: Recipe, constrain: Constrain
    ) -> None:
        self.config, self.recipe, self.constrain = config, recipe, constrain
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
        norm = functools.partial(RMSNorm, eps=config.norm_eps, offset=config.norm_offset)
        if config.qk_norm == "head":
            self.q_norm, self.k_norm = norm(h, axes="H"), norm(h, axes="H")
        elif config.qk_norm == "all":
            self.q_norm, self.k_norm = norm((n, h), axes="NH"), norm((k, h), axes="KH")

    def heads(
        self, x_BTD: Float[jax.Array, "B T D"], rotation: rope.Rotation
    ) -> tuple[
        Float[jax.Array, "B T N H"], Float[jax.Array, "B T K H"], Float[jax.Array, "B T K H"]
    ]:
        """Queries and keys, turned by their positions, and values."""
        config, recipe = self.config, self.recipe
        q_BTNH = project(recipe, x_BTD, self.w_q_DNH[...])
        k_BTKH = project(recipe, x_BTD, self.w_k_DKH[...])
        v_BTKH = project(recipe, x_BTD, self.w_v_DKH[...])
        if config.attention_bias != "none":
            q_BTNH = _add_bias(q_BTNH, self.b_q_NH)
            k_BTKH = _add_bias(k_BTKH, self.b_k_KH)
            v_BTKH = _add_bias(v_BTKH, self.b_v_KH)
        if config.qk_norm != "none":
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        q_BTNH = rope.rotate(self.constrain(q_BTNH, "BTNH"), rotation)
        k_BTKH = rope.rotate(self.constrain(k_BTKH, "BTKH"), rotation)
        return q_BTNH, k_BTKH, self.constrain(v_BTKH, "BTKH")

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return self.config.attention_scale or self.config.head_dim**-0.5

    def output(self, out_BTNH: Float[jax.Array, "B T N H"]) -> Float[jax.Array, "B T D"]:
        """What the heads found, back in the residual stream's width."""
        out_BTNH = self.constrain(out_BTNH, "BTNH")
        out_BTD = project(self.recipe, out_BTNH, self.w_o_NHD[...], num_contracted=2)
        return _add_bias(out_BTD, self.b_o_D) if self.config.attention_bias == "all" else out_BTD

    def __call__(
        self,
        x_BTD: Float[jax.Array, "B T D"],
        rotation: rope.Rotation,
        segment_ids_BT: Int[jax.Array, "B T"] | None,
        *,
        window: int | None,
        implementation: str,
    ) -> Float[jax.Array, "B T D"]:
        config = self.config
        q_BTNH, k_BTKH, v_BTKH = self.heads(x_BTD, rotation)
        out_BTNH = attend(
            checkpoint_name(q_BTNH, "query"),
            checkpoint_name(k_BTKH, "key"),
            checkpoint_name(v_BTKH, "value"),
            segment_ids_BT=segment_ids_BT,
            causal=not config.bidirectional,
            window=window,
            softcap=config.attention_softcap,
            scale=self.scale,
            implementation=implementation,
            block=config.attention_block,
        )
        return self.output(out_BTNH)


class FeedForward(nnx.Module):
    """SwiGLU and GeGLU (Shazeer 2020, arXiv 2002.05202), or squared ReLU (arXiv 2109.08668).

    GeGLU takes the tanh form of GELU, as Gemma does.
    """

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, recipe: Recipe, constrain: Constrain
    ) -> None:
        self.config, self.recipe, self.constrain = config, recipe, constrain
        d, f = config.d_model, config.d_ff
        self.gated = config.activation != "relu2"
        if self.gated:
            self.w_gate_DF = weight(rngs, (d, f), "DF", fan_in=d)
        self.w_up_DF = weight(rngs, (d, f), "DF", fan_in=d)
        gain = 1 / math.sqrt(2 * config.num_layers)
        self.w_down_FD = weight(rngs, (f, d), "FD", fan_in=f, gain=gain)
        if config.ffn_bias:
            if self.gated:
                self.b_gate_F = constant(0.0, (f,), "F")
            self.b_up_F = constant(0.0, (f,), "F")
            self.b_down_D = constant(0.0, (d,), "D")

    def __call__(self, x_BTD: Float[jax.Array, "B T D"]) -> Float[jax.Array, "B T D"]:
        recipe, bias = self.recipe, self.config.ffn_bias
        up_BTF = project(recipe, x_BTD, self.w_up_DF[...])
        if bias:
            up_BTF = _add_bias(up_BTF, self.b_up_F)
        up_BTF = checkpoint_name(self.constrain(up_BTF, "BTF"), "ffn_up")
        if self.gated:
            gate_BTF = project(recipe, x_BTD, self.w_gate_DF[...])
            if bias:
                gate_BTF = _add_bias(gate_BTF, self.b_gate_F)
            gate_BTF = checkpoint_name(self.constrain(gate_BTF, "BTF"), "ffn_gate")
            act = jax.nn.silu if self.config.activation == "swiglu" else jax.nn.gelu
            hidden_BTF = act(gate_BTF) * up_BTF
        else:
            hidden_BTF = jnp.square(jax.nn.relu(up_BTF))
        out_BTD = project(recipe, hidden_BTF, self.w_down_FD[...])
        return _add_bias(out_BTD, self.b_down_D) if bias else out_BTD


class Block(nnx.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)); or x + norm(attention(x)), or both norms."""

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, recipe: Recipe, constrain: Constrain
    ) -> None:
        self.rate = config.dropout
        self.constrain = constrain
        self.has_pre_norms = config.norm_placement != "post"
        self.has_post_norms = config.norm_placement != "pre"
        norm = functools.partial(
            RMSNorm, config.d_model, config.norm_eps, "D", offset=config.norm_offset
        )
        if self.has_pre_norms:
            self.attention_norm, self.ffn_norm = norm(), norm()
        if self.has_post_norms:
            self.attention_post_norm, self.ffn_post_norm = norm(), norm()
        self.attention = Attention(config, rngs=rngs, recipe=recipe, constrain=constrain)
        self.ffn = FeedForward(config, rngs=rngs, recipe=recipe, constrain=constrain)

    def __call__(
        self,
        x_BTD: Float[jax.Array, "B T D"],
        rotation: rope.Rotation,
        segment_ids_BT: Int[jax.Array, "B T"] | None,
        rng: Key[jax.Array, ""] | None,
        *,
        window: int | None,
        implementation: str,
    ) -> Float[jax.Array, "B T D"]:
        """The block's output; `rng` None switches dropout off."""
        attention = functools.partial(
            self.attention,
            rotation=rotation,
            segment_ids_BT=segment_ids_BT,
            window=window,
            implementation=implementation,
        )
        return self.around(x_BTD, attention, rng)

    def around(
        self,
        x_BTD: Float[jax.Array, "B T D"],
        attention: Callable[[jax.Array], jax.Array],
        rng: Key[jax.Array, ""] | None = None,
    ) -> Float[jax.Array, "B T D"]:
        """The block with `attention` in the place of its own (decoding attends to a cache)."""
        rngs = (None, None) if rng is None else tuple(jax.random.split(rng))
        out_BTD = attention(self.attention_norm(x_BTD) if self.has_pre_norms else x_BTD)
        if self.has_post_norms:
            out_BTD = self.attention_post_norm(out_BTD)
        x_BTD = self.constrain(x_BTD + dropout(out_BTD, self.rate, rngs[0]), "BTD")
        out_BTD = self.ffn(self.ffn_norm(x_BTD) if self.has_pre_norms else x_BTD)
        if self.has_post_norms:
            out_BTD = self.ffn_post_norm(out_BTD)
        return self.constrain(x_BTD + dropout(out_BTD, self.rate, rngs[1]), "BTD")


def dropout(x: jax.Array, rate: float, rng: Key[jax.Array, ""] | None) -> jax.Array:
    """Zeroes elements with probability `rate` and scales up the rest; `rng` None: `x` itself."""
    if rate == 0 or rng is None:
        return x
    kept = jax.random.bernoulli(rng, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x))


def _add_bias(x: jax.Array, bias: nnx.Param) -> jax.Array:
    value = bias[...].astype(x.dtype)
    return x + jnp.expand_dims(value, tuple(range(x.ndim - value.ndim)))
