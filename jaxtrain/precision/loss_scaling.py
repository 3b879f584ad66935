"""Dynamic loss scaling of float16 (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2).

    gradients of scale · loss, divided by scale     small gradients stay above float16's smallest
    overflow (a gradient that is not finite)        the update is skipped, the scale halves
    GROWTH_INTERVAL updates without one             the scale doubles

The loss is a sum over target tokens, so a token's gradient does not shrink with the batch and the
scale starts far below what is usual with means; with large microbatches it may fall below 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int32

INITIAL_SCALE = 2.0**8
GROWTH_INTERVAL = 2000
#: Float32's normal numbers: the scale and what it multiplies stay powers of two, exactly.
MIN_SCALE, MAX_SCALE = 2.0**-24, 2.0**24


class LossScale(NamedTuple):
    """Part of a run's state."""

    scale: Float[jax.Array, ""]  # a power of two
    num_clean: Int32[jax.Array, ""]  # updates since the scale last changed


def initial() -> LossScale:
    """Before the first step."""
    return LossScale(jnp.float32(INITIAL_SCALE), jnp.zeros((), jnp.int32))


def updated(
    now: LossScale, is_finite: Bool[jax.Array, ""], growth_interval: int = GROWTH_INTERVAL
) -> LossScale:
    """After a step whose gradients were finite, or were not."""
    num_clean = jnp.where(is_finite, now.num_clean + 1, 0)
    grows = num_clean >= growth_interval
    factor = jnp.where(is_finite, jnp.where(grows, 2.0, 1.0), 0.5)
    scale = jnp.clip(now.scale * factor, MIN_SCALE, MAX_SCALE)
    return LossScale(scale, jnp.where(grows, 0, num_clean))
