import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.precision.quantization import Quantization
from jaxtrain.precision.quantized_weight import QuantizedWeight


def test_master_weight_is_what_arrays_ask_for():
    w = jnp.full((4, 4), 1 + 2.0**-12)
    weight = QuantizedWeight(w, None, None, Quantization(), "w")
    np.testing.assert_array_equal(weight.astype(jnp.float32), w)
    assert weight[...] is weight
    assert weight.ndim == 2
    with pytest.raises(ValueError, match="w: a quantised weight is used whole"):
        weight[0]


def test_scaling_decides_the_product():
    """0.9 times the largest of a row of 64, beside it one that is 2^20 times larger."""
    x = jnp.asarray([[2.0**20] * 64 + [0.9] * 64], jnp.bfloat16)
    w = jnp.concatenate([jnp.zeros((64, 1)), jnp.ones((64, 1))])
    found = {}
    for scaling in ("current", "fp8_block", "mxfp8", "nvfp4"):
        how = Quantization(scaling, emulate=True)
        found[scaling] = float(QuantizedWeight(w, None, None, how, "w").product(x, 1)[0, 0])
    # 0.9 is lost where it shares a scale with 2^20: in the tensor, in 128 neighbours.
    assert found["current"] == found["fp8_block"] == 0
    assert found["mxfp8"] == 0.875 * 64  # the E4M3 number nearest to 0.9
    assert found["nvfp4"] == 0  # the block's scale is under 2^-18 of the largest
