import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from filled import quick

from jaxtrain.kernels import blocks, grouped_matmul
from jaxtrain.models import grouped
from jaxtrain.models.expert_products import InBlocks, Placed

NUM_EXPERTS, PLACES = 3, 32
KERNEL = grouped_matmul.Spec(blocks.GROUPED_MATMUL["hopper"], has_fp8=True, interpret=True)
WAYS = {
    "placed": None,
    "in blocks, one after the other": InBlocks(None, NUM_EXPERTS),
    "in blocks, by our kernel": InBlocks(KERNEL, NUM_EXPERTS),
    "by our kernel, FP8 emulated": InBlocks(
        dataclasses.replace(KERNEL, has_fp8=False), NUM_EXPERTS
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_fp8", [True, False])
def test_all_three_products_are_each_experts_own(way, in_fp8):
    rng = np.random.default_rng(0)
    shapes = (NUM_EXPERTS, PLACES, 16), (NUM_EXPERTS, 16, 8), (NUM_EXPERTS, PLACES, 8)
    e4m3, e5m2 = jnp.float8_e4m3fn, jnp.float8_e5m2
    dtypes = (e4m3, e4m3, e5m2) if in_fp8 else (jnp.float32,) * 3
    x, w, g = (jnp.asarray(rng.normal(size=s), d) for s, d in zip(shapes, dtypes, strict=True))

    def all_three(x, w, g):
        products, where = WAYS[way], None
        if products is None:
            products = Placed()
        else:
            expert = jnp.repeat(jnp.arange(NUM_EXPERTS), PLACES)
            where = grouped.lay_out(expert, NUM_EXPERTS, PLACES)
            spare = ((0, where.spread.shape[0] - NUM_EXPERTS), (0, 0), (0, 0))
            x, g = jnp.pad(x, spare), jnp.pad(g, spare)
        out = products.output(x, w, where, jnp.float32)
        d_input = products.d_input(g, w, where, jnp.float32)
        d_weight = products.d_weight(x, g, where, jnp.float32)
        return out[:NUM_EXPERTS], d_input[:NUM_EXPERTS], d_weight

    found = quick(all_three)(x, w, g)
    x, w, g = (np.asarray(each, np.float64) for each in (x, w, g))
    expected = x @ w, g @ w.swapaxes(1, 2), x.swapaxes(1, 2) @ g
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)  # float32 sums
