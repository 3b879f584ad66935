import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.kernels import blocks
from jaxtrain.kernels.blocks import Block, GroupedBlocks
from jaxtrain.kernels.grouped_matmul import Spec, grouped_matmul
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot, hlo

ROWS = 16
SPEC = Spec(GroupedBlocks(ROWS, Block(16, 32, 4, 2), Block(32, 16, 4, 2)), interpret=True)
GROUPS = {
    "groups of different sizes": [0, 0, 0, 1, 2, 2, 3],
    "the first, one between and the last empty": [1, 1, 3],
    "all rows of one group": [2] * 7,
    "none in use": [],
}


def draw(used, num_terms, num_columns, num_groups=5, num_blocks=7):
    rng = np.random.default_rng(0)
    x, d_out = (rng.normal(size=(num_blocks, ROWS, n)) for n in (num_terms, num_columns))
    # What is behind the blocks in use may hold anything, and any group.
    group = np.array(used + [4] * (num_blocks - len(used)), np.int32)
    return x, rng.normal(size=(num_groups, num_terms, num_columns)), d_out, group


def reference(x, matrices, d_out, group, num_used):
    out, d_x, d_matrices = np.zeros_like(d_out), np.zeros_like(x), np.zeros_like(matrices)
    for i in range(num_used):
        out[i] = x[i] @ matrices[group[i]]
        d_x[i] = d_out[i] @ matrices[group[i]].T
        d_matrices[group[i]] += x[i].T @ d_out[i]
    return out, d_x, d_matrices


@functools.partial(jax.jit, static_argnums=0)
def product_and_gradients(spec, x, matrices, d_out, group, num_used):
    def of_operands(x, matrices):
        return grouped_matmul(spec, x, matrices, group, num_used)

    out, pull = jax.vjp(of_operands, x, matrices)
    return out, *pull(d_out)


@pytest.mark.parametrize("case", GROUPS)
def test_product_and_gradients_equal_float64_reference(case):
    """40 terms and 24 columns: neither is a multiple of the blocks, nor of 16."""
    used = GROUPS[case]
    arrays = draw(used, 40, 24)
    expected = reference(*arrays, len(used))
    in_float32 = [jnp.asarray(x, jnp.float32) for x in arrays[:3]]
    actual = product_and_gradients(SPEC, *in_float32, arrays[3], jnp.int32(len(used)))
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5)  # float32 sums of up to 112 terms


def test_several_blocks_of_terms_and_columns_in_bfloat16_add_up_in_float32():
    arrays = draw([0, 1, 1], 64, 64)
    in_bfloat16 = [jnp.asarray(x, jnp.bfloat16) for x in arrays[:3]]
    expected = reference(*(np.asarray(x, np.float64) for x in in_bfloat16), arrays[3], 3)
    actual = product_and_gradients(SPEC, *in_bfloat16, arrays[3], jnp.int32(3))
    for x, y in zip(actual, expected, strict=True):
        assert x.dtype == jnp.bfloat16
        # One rounding to 8 bits of mantissa of each result, and nothing else.
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("rows", [8, 24])
def test_blocks_that_tensor_cores_do_not_take_are_refused(rows):
    x, matrix = jnp.zeros((1, rows, 16), jnp.float32), jnp.zeros((1, 16, 16), jnp.float32)
    one = jnp.ones((1,), jnp.int32)
    with pytest.raises(ValueError, match=f"blocks of {rows} rows must be a power of two, at least"):
        grouped_matmul(SPEC, x, matrix, one, one[0])


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize("target", ["h100", "a100"])
def test_compiled_for_gpus_it_is_no_more_work_than_there_is(target):
    """FLOPs of each kernel's grid as compiled: every program at most a block times its columns."""
    num_rows, num_groups, num_terms, num_columns = 32768, 8, 1024, 2048
    devices = aot.compile_only_devices(target, 1)
    whole = NamedSharding(make_mesh(MeshConfig(), devices), PartitionSpec())
    sizes = blocks.grouped_matmul(devices[0])
    num_blocks = num_rows // sizes.rows + num_groups  # whatever the groups' sizes are

    def abstract(shape, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    spec = dataclasses.replace(SPEC, blocks=sizes, interpret=False)
    traced = jax.jit(functools.partial(product_and_gradients.__wrapped__, spec)).trace(
        abstract((num_blocks, sizes.rows, num_terms)),
        abstract((num_groups, num_terms, num_columns)),
        abstract((num_blocks, sizes.rows, num_columns)),
        abstract((num_blocks,), jnp.int32),
        abstract((), jnp.int32),
    )
    text = aot.compile_program(traced.lower(lowering_platforms=("cuda",))).as_text() or ""
    found = hlo.read(text)
    assert [each.target for each in found.kernels] == ["__gpu$xla.gpu.triton"] * 3
    assert found.matmuls == ()
    flops = []
    for line in text.splitlines():
        grid = [int(size) for size in re.findall(r"grid_[xyz] = (\d+)", line)]
        if "grouped_product_kernel" in line and grid:
            columns = num_terms if "transpose" in line else num_columns
            terms = num_columns if "transpose" in line else num_terms
            assert grid == [num_blocks, columns // sizes.product.cols, 1]
            flops.append(grid[0] * grid[1] * 2 * sizes.rows * sizes.product.cols * terms)
    one = 2 * num_rows * num_terms * num_columns
    assert len(flops) == 2
    assert all(one <= each <= 1.05 * one for each in flops)
