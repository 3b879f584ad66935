"""From logits to a token: which ids may be drawn, with what probability, and the draw.

The order, in which each works on what the one before left:

    repetition penalty → temperature → top-k → top-p → min-p → draw

Temperature 0 takes the most likely id after the penalty; the filters then change nothing. Every row
has its own settings and its own random key, so that what it draws does not depend on the rows
around it. Log-probabilities are the model's own: of the logits as they came, before all of this.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Key

from jaxtrain.types import Array

_LARGEST = 1e6  # of a factor: logits times it stay far inside float32


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a request draws its tokens; defaults draw from the model's own distribution."""

    temperature: float = 1.0  # divides the logits; 0: the most likely id
    top_k: int | None = None  # only the k most likely ids
    top_p: float = 1.0  # only the fewest most likely ids whose probabilities reach this sum
    min_p: float = 0.0  # only ids at least this fraction as likely as the most likely one
    repetition_penalty: float = 1.0  # of ids in the prompt or the answer (arXiv 1909.05858)
    seed: int = 0

    def __post_init__(self) -> None:
        checks = {
            "temperature": (0 <= self.temperature <= _LARGEST, f"from 0 to {_LARGEST:,.0f}"),
            "top_k": (
                self.top_k is None or 1 <= self.top_k < 2**31,
                "from 1 to 2**31 - 1, or None for all",
            ),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "repetition_penalty": (
                1 / _LARGEST <= self.repetition_penalty <= _LARGEST,
                f"from {1 / _LARGEST} to {_LARGEST:,.0f}",
            ),
            "seed": (0 <= self.seed < 2**32, "from 0 to 2**32 - 1"),
        }
        for name, (holds, expected) in checks.items():
            if not holds:  # NaN fails every comparison
                raise ValueError(f"{name}={getattr(self, name)} must be {expected}")

    @property
    def filters(self) -> bool:
        """Whether ids are cut off, which needs them sorted."""
        return self.temperature > 0 and (self.top_k is not None or self.top_p < 1 or self.min_p > 0)


class Settings(NamedTuple):
    """`Sampling` of each row of a batch, on the device."""

    temperature_B: Float[Array, "B"]
    top_k_B: Int[Array, "B"]
    top_p_B: Float[Array, "B"]
    min_p_B: Float[Array, "B"]
    repetition_penalty_B: Float[Array, "B"]


def penalize(
    logits_BV: Float[Array, "B V"], seen_BV: Bool[Array, "B V"], penalty_B: Float[Array, "B"]
) -> Float[Array, "B V"]:
    """Logits of ids seen before, made less likely: divided where positive, else multiplied.

    Once, however often an id was seen (Keskar et al. 2019, arXiv 1909.05858, eq. 4.1, with the sign
    minded: dividing a negative logit would make it likelier).
    """
    penalty = penalty_B[:, None]
    penalized = jnp.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return jnp.where(seen_BV, penalized, logits_BV)


def filtered(logits_BV: Float[Array, "B V"], settings: Settings) -> Float[Array, "B V"]:
    """Tempered logits with −inf for ids that top-k, top-p and min-p cut off.

    Ties at a border are kept by lower id first, as the sort puts them. The most likely id always
    stays; the id with which the sum reaches top-p stays too.
    """
    order = jnp.argsort(-logits_BV, axis=-1, stable=True)
    sorted_BV = jnp.take_along_axis(logits_BV, order, axis=-1)
    rank = jnp.arange(logits_BV.shape[-1], dtype=jnp.int32)[None]
    sorted_BV = jnp.where(rank < settings.top_k_B[:, None], sorted_BV, -jnp.inf)
    probability = jax.nn.softmax(sorted_BV, axis=-1)
    before = jnp.cumsum(probability, axis=-1) - probability
    top_p = settings.top_p_B[:, None]
    kept = (before < top_p) | (top_p >= 1) | (rank == 0)  # a sum of 1 may be reached by rounding
    kept &= probability >= settings.min_p_B[:, None] * probability[:, :1]
    sorted_BV = jnp.where(kept, sorted_BV, -jnp.inf)
    back = jnp.argsort(order, axis=-1)
    return jnp.take_along_axis(sorted_BV, back, axis=-1)


def draw(
    logits_BV: Float[Array, "B V"],
    seen_BV: Bool[Array, "B V"],
    settings: Settings,
    rng_B: Key[Array, "B"],
    *,
    may_draw_V: Bool[Array, "V"],
    filters: bool,
) -> Int[Array, "B"]:
    """One id for each row.

    Args:
      may_draw_V: ids for which it is False are never drawn: a tokenizer may have fewer than its
        model has rows, and reserved ones mean nothing.
      filters: False: no row asks for top-k, top-p or min-p, and nothing is sorted.
    """
    penalized_BV = penalize(logits_BV, seen_BV, settings.repetition_penalty_B)
    penalized_BV = jnp.where(may_draw_V[None], penalized_BV, -jnp.inf)
    is_greedy_B = settings.temperature_B < jnp.finfo(jnp.float32).tiny  # what is flushed to 0 too
    likeliest_B = jnp.argmax(penalized_BV, axis=-1).astype(jnp.int32)

    def drawn_B() -> Array:
        one = jnp.ones_like(settings.temperature_B)
        temperature_B = jnp.where(is_greedy_B, one, settings.temperature_B)
        # From the largest one down: a small temperature would take logits themselves to infinity.
        below_BV = penalized_BV - jnp.max(penalized_BV, axis=-1, keepdims=True)
        tempered_BV = below_BV / temperature_B[:, None]
        if filters:
            tempered_BV = filtered(tempered_BV, settings)
        id_B = jax.vmap(jax.random.categorical)(rng_B, tempered_BV)
        return jnp.where(is_greedy_B, likeliest_B, id_B.astype(jnp.int32))

    # A random number for each id of the vocabulary costs as much as a layer: not for nothing.
    return jax.lax.cond(is_greedy_B.all(), lambda: likeliest_B, drawn_B)
