"""The parts of a block beside attention: norm, feed-forward, and how weights are made and used.

Parameters are float32 `nnx.Param`s that carry their dimension letters (`axes`). Activations have
the recipe's compute dtype, norms are computed in float32. Every weight matmul goes through
`project`. Attention layers are in `gqa.py` and `mla.py`, experts in `moe.py`, the block that joins
them in `block.py`, stacking and remat in `decoder.py`.

`constrain(x, letters)` pins an activation to the mesh; it comes from outside, and the letters are
all that a layer knows of it.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Key

from jaxtrain.models.config import ModelConfig
from jaxtrain.models.low_rank import LowRank
from jaxtrain.precision.quantized_weight import QuantizedWeight
from jaxtrain.precision.recipe import Recipe

Constrain = Callable[[jax.Array, str], jax.Array]

#: Of `clamped_swiglu`: the sharpness of its sigmoid, and where gate and up are cut.
CLAMP_ALPHA, CLAMP_LIMIT = 1.702, 7.0

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


def project(
    recipe: Recipe,
    x: jax.Array,
    w: jax.Array | LowRank | QuantizedWeight,
    num_contracted: int = 1,
) -> jax.Array:
    """Contracts the last dimensions of `x` with the first of `w`, in the compute dtype.

    Master weights are not cast here: see `precision.recipe` on their gradients.
    """
    if isinstance(w, LowRank):
        update = project(recipe, project(recipe, x, w.a, num_contracted), w.b)
        return project(recipe, x, w.base, num_contracted) + update * w.scale
    if isinstance(w, QuantizedWeight):
        x = x.astype(recipe.compute_dtype)
        return w.product(x, num_contracted, recipe.grad_reduce_dtype)
    of_x = tuple(range(x.ndim - num_contracted, x.ndim))
    of_w = tuple(range(num_contracted))
    x = x.astype(recipe.compute_dtype)
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


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + eps) · scale + bias (arXiv 1607.06450), in float32."""

    def __init__(self, size: int, eps: float, axes: str) -> None:
        self.eps = eps
        self.scale, self.bias = constant(1.0, (size,), axes), constant(0.0, (size,), axes)

    def __call__(self, x: Float[jax.Array, "*rest size"]) -> Float[jax.Array, "*rest size"]:
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        leading = tuple(range(x.ndim - 1))
        scale, bias = (jnp.expand_dims(p[...], leading) for p in (self.scale, self.bias))
        return (wide * jax.lax.rsqrt(variance + self.eps) * scale + bias).astype(x.dtype)


def make_norm(config: ModelConfig, size: int, axes: str = "D") -> RMSNorm | LayerNorm:
    """A norm of the config's kind."""
    if config.norm == "layer":
        return LayerNorm(size, config.norm_eps, axes)
    return RMSNorm(size, config.norm_eps, axes, offset=config.norm_offset)


class FeedForward(nnx.Module):
    """Gated (see `gated`), squared ReLU (arXiv 2109.08668), or exact GELU (arXiv 1606.08415).

    Args:
      width: of the hidden layer; None: config.d_ff.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        recipe: Recipe,
        constrain: Constrain,
        width: int | None = None,
    ) -> None:
        self.config, self.recipe, self.constrain = config, recipe, constrain
        d, f = config.d_model, width or config.d_ff
        self.gated = config.is_gated
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
            up_BTF = add_bias(up_BTF, self.b_up_F)
        up_BTF = checkpoint_name(self.constrain(up_BTF, "BTF"), "ffn_up")
        if self.gated:
            gate_BTF = project(recipe, x_BTD, self.w_gate_DF[...])
            if bias:
                gate_BTF = add_bias(gate_BTF, self.b_gate_F)
            gate_BTF = checkpoint_name(self.constrain(gate_BTF, "BTF"), "ffn_gate")
            hidden_BTF = gated(self.config.activation, gate_BTF, up_BTF)
        elif self.config.activation == "gelu":
            hidden_BTF = jax.nn.gelu(up_BTF, approximate=False)
        else:
            hidden_BTF = jnp.square(jax.nn.relu(up_BTF))
        out_BTD = project(recipe, hidden_BTF, self.w_down_FD[...])
        return add_bias(out_BTD, self.b_down_D) if bias else out_BTD


def gated(
    activation: str, gate: Float[jax.Array, "*rest"], up: Float[jax.Array, "*rest"]
) -> Float[jax.Array, "*rest"]:
    """The hidden layer of a gated feed-forward (Shazeer 2020, arXiv 2002.05202).

    swiglu: silu(gate) · up; geglu: gelu(gate) · up in GELU's tanh form, as Gemma has it;
    clamped_swiglu: gate · sigmoid(1.702 · gate) · (up + 1), with gate ≤ 7 and |up| ≤ 7 (GPT-OSS,
    arXiv 2508.10925).
    """
    if activation == "clamped_swiglu":
        gate = jnp.minimum(gate, CLAMP_LIMIT)
        up = jnp.clip(up, -CLAMP_LIMIT, CLAMP_LIMIT)
        return gate * jax.nn.sigmoid(CLAMP_ALPHA * gate) * (up + 1)
    act = jax.nn.silu if activation == "swiglu" else jax.nn.gelu
    return act(gate) * up


def dropout(x: jax.Array, rate: float, rng: Key[jax.Array, ""] | None) -> jax.Array:
    """Zeroes elements with probability `rate` and scales up the rest; `rng` None: `x` itself."""
    if rate == 0 or rng is None:
        return x
    kept = jax.random.bernoulli(rng, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x))


def add_bias(x: jax.Array, bias: nnx.Param) -> jax.Array:
    """`x` + bias over its last dimensions, in the dtype of `x`.

    Added in float32, as then its gradient is, a sum over all tokens.
    """
    value = bias[...].astype(jnp.float32)
    value = jnp.expand_dims(value, tuple(range(x.ndim - value.ndim)))
    return (x.astype(jnp.float32) + value).astype(x.dtype)
