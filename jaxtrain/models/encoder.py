"""What an encoder such as BERT (arXiv 1810.04805) has at its ends beyond a decoder.

Behind the token embeddings: those of positions and of the token type, and a norm of the sum. Ahead
of the head: a dense layer, and behind it a bias of the logits. The bias is one more row of the
head, which a constant 1 behind the hidden states meets, so that losses need not know of it.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from jaxtrain.models.config import ModelConfig
from jaxtrain.models.layers import add_bias, constant, make_norm, project, weight
from jaxtrain.precision.recipe import Recipe

#: Columns behind the hidden states, of which the first is 1: matmuls want multiples of 8.
NUM_BIAS_COLUMNS = 8


class PositionEmbedding(nnx.Module):
    """Adds learned embeddings of positions and of the first token type, and norms."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, fan_in: int) -> None:
        assert config.num_positions is not None, config
        d, self.has_types = config.d_model, config.num_token_types > 0
        self.position_TD = weight(rngs, (config.num_positions, d), "TD", fan_in=fan_in)
        if self.has_types:
            self.type_AD = weight(rngs, (config.num_token_types, d), "AD", fan_in=fan_in)
        self.norm = make_norm(config, d)

    def __call__(
        self, x_BTD: Float[jax.Array, "B T D"], positions_BT: Int[jax.Array, "B T"]
    ) -> Float[jax.Array, "B T D"]:
        """The sum in the dtype of `x_BTD`; a position that has no embedding makes NaN."""
        rows = self.position_TD[...].at[positions_BT]
        added_BTD = rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        if self.has_types:
            added_BTD += self.type_AD[...][None, :1]
        return self.norm(x_BTD + added_BTD.astype(x_BTD.dtype))


class MaskedLMHead(nnx.Module):
    """What is between the last block and the head, and the bias of the logits."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, recipe: Recipe) -> None:
        d, self.recipe = config.d_model, recipe
        self.w_DF = weight(rngs, (d, d), "DF", fan_in=d)
        self.b_F = constant(0.0, (d,), "F")
        self.norm = make_norm(config, d, "F")
        self.b_V = constant(0.0, (config.num_vocab_rows,), "V")

    def __call__(self, x_BTD: Float[jax.Array, "B T D"]) -> Float[jax.Array, "B T more"]:
        """norm(gelu(dense(x))), and the columns for the bias."""
        out_BTF = add_bias(project(self.recipe, x_BTD, self.w_DF[...]), self.b_F)
        out_BTF = self.norm(jax.nn.gelu(out_BTF, approximate=False))
        one = (jnp.arange(NUM_BIAS_COLUMNS) == 0).astype(out_BTF.dtype)
        columns = jnp.broadcast_to(one[None, None], (*out_BTF.shape[:2], NUM_BIAS_COLUMNS))
        return jnp.concatenate([out_BTF, columns], axis=-1)

    def with_bias(self, head_DV: Float[jax.Array, "D V"]) -> Float[jax.Array, "more V"]:
        """The head with a row for each of those columns."""
        bias_1V = self.b_V[...].astype(head_DV.dtype)[None]
        return jnp.concatenate([head_DV, jnp.pad(bias_1V, ((0, NUM_BIAS_COLUMNS - 1), (0, 0)))])
