"""NEFTune: noise on the embeddings of fine-tuning, against overfitting the form of the answers.

Jain et al. 2023, arXiv 2310.05914, algorithm 1: each entry of a sequence of L tokens of width D
gets noise drawn uniformly from ±α / √(L · D), so that the noise vector of the sequence is about
α / √3 long whatever its size. L is the length of the segment, not of the row that it is packed in.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Int, Key

from jaxtrain.types import Array


def embedding_noise(
    alpha: float, segment_ids_BT: Int[Array, "B T"], rng: Key[jax.Array, ""]
) -> Callable[[jax.Array], jax.Array]:
    """What to apply to embeddings [B, T, D]; filler keeps its own."""
    lengths_BT1 = segment_lengths(segment_ids_BT)[..., None].astype(jnp.float32)

    def perturb(x_BTD: jax.Array) -> jax.Array:
        noise_BTD = jax.random.uniform(rng, x_BTD.shape, jnp.float32, minval=-1, maxval=1)
        size_BT1 = alpha * lax.rsqrt(jnp.maximum(lengths_BT1, 1.0) * x_BTD.shape[-1])
        size_BT1 = jnp.where(lengths_BT1 > 0, size_BT1, 0.0)
        return (x_BTD.astype(jnp.float32) + size_BT1 * noise_BTD).astype(x_BTD.dtype)

    return perturb


def segment_lengths(segment_ids_BT: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """How many tokens the segment of each position has; 0 on filler."""
    columns_BT = lax.broadcasted_iota(jnp.int32, segment_ids_BT.shape, 1)
    changes_BT = segment_ids_BT[:, 1:] != segment_ids_BT[:, :-1]
    starts_BT = jnp.pad(changes_BT, ((0, 0), (1, 0)), constant_values=True)
    ends_BT = jnp.pad(changes_BT, ((0, 0), (0, 1)), constant_values=True)
    last = segment_ids_BT.shape[1] - 1
    start_BT = lax.cummax(jnp.where(starts_BT, columns_BT, 0), axis=1)
    end_BT = lax.cummin(jnp.where(ends_BT, columns_BT, last), axis=1, reverse=True)
    return jnp.where(segment_ids_BT != 0, end_BT - start_BT + 1, 0)
