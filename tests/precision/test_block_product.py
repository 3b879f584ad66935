"""The kernel is interpreted here: on CPUs, one device and eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.kernels.block_scaled_matmul import Spec
from jaxtrain.kernels.blocks import Block
from jaxtrain.parallel.mesh import BATCH_AXES, MeshConfig, make_mesh
from jaxtrain.parallel.sharding import TABLES, partition_spec
from jaxtrain.precision import block_product, tiled

#: The weight's name, shapes of the batch and of the weight, and its contracted dimensions.
CASES = {
    "columns over tensor": ("w_up_DF", (4, 128), (128, 256), 1),
    "terms over tensor": ("w_o_NHD", (4, 128), (4, 64, 128), 2),
    "axes cut tiles of outputs and tokens": ("w_q_DNH", (4, 6), (40, 2, 24), 1),
    "axes cut tiles of terms": ("w_down_FD", (4, 6), (48, 40), 1),
}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    spec = Spec(Block(64, 32, 4, 2), interpret=True)
    monkeypatch.setattr(block_product, "_kernel", lambda mesh: spec)


def draw(batch, shape, num_contracted):
    """Activations, a weight and a gradient whose tiles have different scales."""
    rng = np.random.default_rng(0)
    x_shape, g_shape = (*batch, *shape[:num_contracted]), (*batch, *shape[num_contracted:])
    x, w, g = (
        rng.normal(size=size) * 2.0 ** rng.integers(-6, 6, size)
        for size in (x_shape, shape, g_shape)
    )
    return [jnp.asarray(a, jnp.float32) for a in (x, w, g)]


@functools.partial(jax.jit, static_argnums=0)
def product_and_gradients(spec, x, w, g):
    y, pull = jax.vjp(lambda x, w: tiled.product(spec, x, w), x, w)
    return y, *pull(g)


def spec_of(case, mesh=None, *, emulate=False):
    name, _, _, num_contracted = CASES[case]
    return tiled.Spec("fp8_block", num_contracted, emulate, jnp.float32, name, mesh)


def assert_equal_but_for_the_order_of_sums(actual, expected):
    for x, y in zip(actual, expected, strict=True):
        # The same FP8 numbers, multiplied without rounding; float32 sums of up to 512 terms.
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-6 * np.abs(y).max())


def test_kernel_gives_what_emulation_gives():
    arrays = draw(*CASES["terms over tensor"][1:])
    expected = product_and_gradients(spec_of("terms over tensor", emulate=True), *arrays)
    actual = product_and_gradients(spec_of("terms over tensor"), *arrays)
    assert_equal_but_for_the_order_of_sums(actual, expected)


@pytest.mark.parametrize("case", CASES)
def test_kernel_on_eight_devices_gives_what_emulation_gives_on_one(case):
    """2 × 2 × 2: rows over data and fsdp, the weight's D over fsdp, N and F over tensor."""
    arrays = draw(*CASES[case][1:])
    expected = product_and_gradients(spec_of(case, emulate=True), *arrays)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    letters = CASES[case][0].rpartition("_")[2]
    rows, of_weight = PartitionSpec(BATCH_AXES), partition_spec(letters, TABLES["zero3"].params)
    placed = [
        jax.device_put(array, NamedSharding(mesh, where))
        for array, where in zip(arrays, (rows, of_weight, rows), strict=True)
    ]
    actual = product_and_gradients(spec_of(case, mesh), *placed)
    assert_equal_but_for_the_order_of_sums(actual, expected)


@pytest.mark.parametrize(
    ("name", "num_contracted", "inputs", "outputs"),
    [
        ("attention.w_q_DNH", 1, (), ("tensor",)),
        ("attention.w_o_NHD", 2, ("tensor",), ()),
        ("ffn.w_down_FD", 1, ("tensor",), ()),
        ("attention.w_k_rope_DH", 1, (), ()),
        ("attention.w_q_down_DR", 1, (), ()),
        ("attention.w_k_up_RNH", 1, (), ("tensor",)),
    ],
)
def test_axes_are_those_of_the_letters(name, num_contracted, inputs, outputs):
    assert block_product.axes_of(name, num_contracted) == (BATCH_AXES, inputs, outputs)
