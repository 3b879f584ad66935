"""A weight with a low-rank update, against products in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.models.layers import project
from jaxtrain.models.low_rank import LowRank
from jaxtrain.precision.recipe import get_recipe

R, SCALE = 3, 0.5
# Shapes of W, A and B with the einsum of A·B; the last two stack independent matrices.
KINDS = {
    "DF": ((6, 5), (6, R), (R, 5), "dr,rf->df"),
    "DNH": ((6, 2, 4), (6, R), (R, 2, 4), "dr,rnh->dnh"),
    "NHD": ((2, 4, 6), (2, 4, R), (R, 6), "nhr,rd->nhd"),
    "EDF": ((3, 6, 5), (3, 6, R), (3, R, 5), "edr,erf->edf"),
    "LNHD": ((3, 2, 4, 6), (3, 2, 4, R), (3, R, 6), "lnhr,lrd->lnhd"),
}


def make(kind):
    """(the weight, its sum in float64)."""
    *shapes, product = KINDS[kind]
    rng = np.random.default_rng(0)
    w, a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    total = w.astype(np.float64) + SCALE * np.einsum(product, a.astype(float), b.astype(float))
    return LowRank(*map(jnp.asarray, (w, a, b)), SCALE), total


@pytest.mark.parametrize("kind", KINDS)
def test_sum_is_that_of_float64(kind):
    weight, total = make(kind)
    np.testing.assert_allclose(weight.astype(jnp.float32), total, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("kind", "num_contracted"), [("DF", 1), ("DNH", 1), ("NHD", 2)])
def test_projection_is_that_of_the_sum(kind, num_contracted):
    weight, total = make(kind)
    x = np.random.default_rng(1).standard_normal((2, 7, *total.shape[:num_contracted]))
    found = project(get_recipe("float32"), jnp.asarray(x, jnp.float32), weight[...], num_contracted)
    np.testing.assert_allclose(found, np.tensordot(x, total, num_contracted), rtol=2e-6, atol=2e-6)


def test_an_update_below_the_spacing_of_bfloat16_counts():
    """Around ±1 numbers of bfloat16 are at least 2⁻⁸ apart: the sum ±1 + 2⁻¹⁰ is ±1."""
    signs = jnp.where(jnp.arange(64) % 2 == 0, 1.0, -1.0)[:, None]
    ones = jnp.ones((64, 1), jnp.float32)
    weight = LowRank(signs, ones, jnp.full((1, 1), 2.0**-10), 1.0)
    recipe, x = get_recipe("bfloat16"), ones.T
    assert float(project(recipe, x, weight.astype(jnp.bfloat16))[0, 0]) == 0
    assert float(project(recipe, x, weight)[0, 0]) == 64 * 2.0**-10


def test_only_the_whole_can_be_asked_for():
    weight, _ = make("DF")
    assert weight[...] is weight
    with pytest.raises(ValueError, match=r"is used whole, not at 0"):
        weight[0]
