"""Products by group against `jax.lax.ragged_dot` and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.models import grouped

RNG = np.random.default_rng(0)
NUM_EXPERTS = 5
W_EDF = RNG.standard_normal((NUM_EXPERTS, 6, 4)).astype(np.float32)


def all_three(rows, w_EDF, target, expert):
    """Outputs, gradients of rows and of matrices."""
    layout = grouped.lay_out(expert, NUM_EXPERTS)
    blocks, d_outs = layout.gather(rows), layout.gather(target)
    outs = grouped.product(blocks, w_EDF, layout, jnp.float32)
    d_blocks = grouped.product(d_outs, w_EDF.swapaxes(1, 2), layout, jnp.float32)
    d_w_EDF = grouped.of_matrices(blocks, d_outs, NUM_EXPERTS, layout, jnp.float32)
    return layout.scatter(outs), layout.scatter(d_blocks), d_w_EDF


def by_ragged_dot(rows, w_EDF, expert):
    """The same with rows sorted by expert; rows without one are 0."""
    order = jnp.argsort(expert)
    sizes = jnp.bincount(expert, length=NUM_EXPERTS + 1)[:NUM_EXPERTS].astype(jnp.int32)
    outs = jax.lax.ragged_dot(rows[order], w_EDF, sizes, precision=jax.lax.Precision.HIGHEST)
    outs = jnp.where((expert[order] < NUM_EXPERTS)[:, None], outs, 0)
    return outs[jnp.argsort(order)]


EXPERTS = {
    "mixed, some without": RNG.integers(0, NUM_EXPERTS + 1, 70),
    "all to one": np.full(70, 3),
    "the first and the last empty": RNG.integers(1, NUM_EXPERTS - 1, 70),
    "none at all": np.full(70, NUM_EXPERTS),
}


@pytest.mark.parametrize("case", EXPERTS)
def test_products_and_gradients_are_those_of_ragged_dot(case):
    rows = RNG.standard_normal((70, 6)).astype(np.float32)
    target = RNG.standard_normal((70, 4)).astype(np.float32)
    expert = jnp.asarray(EXPERTS[case], jnp.int32)

    def loss(rows, w_EDF):
        out = by_ragged_dot(rows, w_EDF, expert)
        return jnp.sum(out * target), out

    expected_grads, expected = quick(jax.grad(loss, (0, 1), has_aux=True))(rows, W_EDF)
    out, *grads = quick(all_three)(rows, W_EDF, target, expert)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    for got, want in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)


_lay_out = quick(grouped.lay_out, static_argnums=1)


@settings(max_examples=50)
@given(st.lists(st.integers(0, NUM_EXPERTS), min_size=70, max_size=70))
def test_every_row_has_a_place_of_its_own_in_a_block_of_its_expert(experts):
    layout = jax.device_get(_lay_out(np.array(experts, np.int32), NUM_EXPERTS))
    size = grouped.block_size(70, NUM_EXPERTS)
    has_one = np.array(experts) < NUM_EXPERTS
    slots = layout.slot[has_one]
    assert len(set(slots.tolist())) == len(slots)
    np.testing.assert_array_equal(layout.expert[slots // size], np.array(experts)[has_one])
    assert (slots // size < layout.num_used).all()
    assert (layout.slot[~has_one] >= len(layout.expert) * size).all()
    counts = np.bincount(np.array(experts)[has_one], minlength=NUM_EXPERTS)
    assert layout.num_used == np.ceil(counts / size).sum()


def test_gradients_of_bfloat16_matrices_add_up_in_float32():
    """512 equal rows: bfloat16 sums would stop at 256."""
    rows, targets = (jnp.ones((512, 1), jnp.bfloat16) for _ in range(2))

    def gradient(rows, targets):
        layout = grouped.lay_out(jnp.zeros(512, jnp.int32), NUM_EXPERTS)
        blocks = layout.gather(rows), layout.gather(targets)
        return grouped.of_matrices(*blocks, NUM_EXPERTS, layout, jnp.bfloat16)

    np.testing.assert_array_equal(quick(gradient)(rows, targets)[:, 0, 0], [512, 0, 0, 0, 0])


@pytest.mark.parametrize(("rows", "size"), [(8, 8), (70, 8), (100, 16), (640, 128), (10_000, 128)])
def test_block_size_follows_an_even_share(rows, size):
    assert grouped.block_size(rows, NUM_EXPERTS) == size
