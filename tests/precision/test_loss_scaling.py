import jax.numpy as jnp
import pytest

from jaxtrain.precision import loss_scaling
from jaxtrain.precision.loss_scaling import LossScale


def run(outcomes: str, start: float = 8.0) -> list[tuple[float, int]]:
    """(scale, clean updates) after each of "." (finite) and "x" (overflow), growing after 3."""
    now, seen = LossScale(jnp.float32(start), jnp.int32(0)), []
    for outcome in outcomes:
        now = loss_scaling.updated(now, jnp.bool_(outcome == "."), growth_interval=3)
        seen.append((float(now.scale), int(now.num_clean)))
    return seen


def test_scale_doubles_after_so_many_clean_updates_in_a_row():
    assert run("......") == [(8, 1), (8, 2), (16, 0), (16, 1), (16, 2), (32, 0)]


def test_overflow_halves_the_scale_and_starts_the_count_anew():
    assert run("..x..x.") == [(8, 1), (8, 2), (4, 0), (4, 1), (4, 2), (2, 0), (2, 1)]


@pytest.mark.parametrize(
    ("outcomes", "limit"), [("x", loss_scaling.MIN_SCALE), ("...", loss_scaling.MAX_SCALE)]
)
def test_scale_stays_within_its_limits(outcomes, limit):
    assert run(outcomes, limit)[-1][0] == limit
