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
from jaxtrain.kernels.grouped_matmul import Spec, of_matrices, product
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot, hlo

ROWS = 32
SIZES = GroupedBlocks(ROWS, Block(32, 32, 4, 2), Block(32, 32, 4, 2))
SPEC = Spec(SIZES, has_fp8=True, interpret=True)
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
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


@functools.partial(jax.jit, static_argnums=(0, 6))
def all_three(spec, x, matrices, d_out, group, num_used, dtype):
    """Output and both gradients."""
    out = product(spec, x, matrices, group, num_used, dtype)
    d_x = product(spec, d_out, matrices, group, num_used, dtype, transposed=True)
    return out, d_x, of_matrices(spec, x, d_out, len(matrices), group, num_used, dtype)


@pytest.mark.parametrize("case", GROUPS)
def test_product_and_gradients_equal_float64_reference(case):
    """40 terms and 24 columns: neither is a multiple of the blocks, nor of 16."""
    used = GROUPS[case]
    arrays = draw(used, 40, 24)
    expected = reference(*arrays, len(used))
    in_float32 = [jnp.asarray(x, jnp.float32) for x in arrays[:3]]
    actual = all_three(SPEC, *in_float32, arrays[3], jnp.int32(len(used)), jnp.float32)
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5)  # float32 sums of up to 224 terms


def test_several_blocks_of_terms_and_columns_in_bfloat16_add_up_in_float32():
    arrays = draw([0, 1, 1], 64, 64)
    in_bfloat16 = [jnp.asarray(x, jnp.bfloat16) for x in arrays[:3]]
    expected = reference(*(np.asarray(x, np.float64) for x in in_bfloat16), arrays[3], 3)
    actual = all_three(SPEC, *in_bfloat16, arrays[3], jnp.int32(3), jnp.bfloat16)
    for x, y in zip(actual, expected, strict=True):
        assert x.dtype == jnp.bfloat16
        # One rounding to 8 bits of mantissa of each result, and nothing else.
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("case", GROUPS)
def test_fp8_operands_of_two_formats_lose_nothing_but_the_sums_rounding(case):
    """E4M3 blocks and matrices, E5M2 gradients; 40 terms and 24 columns are filled up to 32s."""
    used = GROUPS[case]
    *arrays, group = draw(used, 40, 24)
    formats = (E4M3, E4M3, E5M2)
    in_fp8 = [jnp.asarray(x, dtype) for x, dtype in zip(arrays, formats, strict=True)]
    expected = reference(*(np.asarray(x, np.float64) for x in in_fp8), group, len(used))
    actual = all_three(SPEC, *in_fp8, group, jnp.int32(len(used)), jnp.float32)
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5)  # float32 sums of up to 224 terms


@pytest.mark.parametrize(("rows", "dtype"), [(8, jnp.float32), (24, jnp.float32), (16, E4M3)])
def test_blocks_that_tensor_cores_do_not_take_are_refused(rows, dtype):
    x, matrix = jnp.zeros((1, rows, 16), dtype), jnp.zeros((1, 16, 16), dtype)
    one = jnp.ones((1,), jnp.int32)
    with pytest.raises(ValueError, match=f"blocks of {rows} rows must be a power of two, at least"):
        product(SPEC, x, matrix, one, one[0], jnp.float32)


@pytest.mark.parametrize(
    ("has_fp8", "dtypes", "line"),
    [
        (False, (E4M3, E4M3), "float8_e4m3fn has no matmul on this device: it takes compute"),
        (True, (E4M3, jnp.bfloat16), "float8_e4m3fn and bfloat16 must both be FP8, or neither"),
    ],
)
def test_operands_that_a_device_cannot_multiply_are_refused(has_fp8, dtypes, line):
    x, matrix = (jnp.zeros((1, 32, 32), dtype) for dtype in dtypes)
    one = jnp.ones((1,), jnp.int32)
    with pytest.raises(ValueError, match=line):
        product(dataclasses.replace(SPEC, has_fp8=has_fp8), x, matrix, one, one[0], jnp.float32)


def compiled(target, formats, dump_dir):
    """Output and both gradients compiled for a GPU: (its blocks, the program's text)."""
    devices = aot.compile_only_devices(target, 1)
    whole = NamedSharding(make_mesh(MeshConfig(), devices), PartitionSpec())
    sizes = blocks.grouped_matmul(devices[0])
    num_blocks = NUM_ROWS // sizes.rows + NUM_GROUPS  # whatever the groups' sizes are
    of_rows = (num_blocks, sizes.rows)
    shapes = (*of_rows, TERMS), (NUM_GROUPS, TERMS, COLS), (*of_rows, COLS)
    abstract = functools.partial(jax.ShapeDtypeStruct, sharding=whole)
    spec = Spec(sizes, blocks.has_fp8(devices[0]))
    run = functools.partial(all_three.__wrapped__, spec, dtype=jnp.bfloat16)
    traced = jax.jit(run).trace(
        *map(abstract, shapes, formats), abstract((num_blocks,), jnp.int32), abstract((), jnp.int32)
    )
    options = {"xla_gpu_autotune_level": 0, "xla_dump_to": str(dump_dir)}
    lowered = traced.lower(lowering_platforms=("cuda",))
    return sizes, num_blocks, lowered.compile(compiler_options=options).as_text() or ""


NUM_ROWS, NUM_GROUPS, TERMS, COLS = 32768, 8, 1024, 2048
BFLOAT16, FP8 = (jnp.bfloat16,) * 3, (E4M3, E4M3, E5M2)


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize(
    ("target", "formats"), [("h100", BFLOAT16), ("a100", BFLOAT16), ("h100", FP8)]
)
def test_compiled_for_gpus_it_is_no_more_work_than_there_is(target, formats, tmp_path):
    """FLOPs of each kernel's grid as compiled: every program at most a block times its columns."""
    sizes, num_blocks, text = compiled(target, formats, tmp_path)
    found = hlo.read(text)
    assert [each.target for each in found.kernels] == ["__gpu$xla.gpu.triton"] * 3
    assert found.matmuls == ()
    flops = {}
    for line in text.splitlines():
        grid = [int(size) for size in re.findall(r"grid_[xyz] = (\d+)", line)]
        if "grouped_product_kernel" in line and grid:
            columns = grid[1] * sizes.product.cols  # of the output, or of the gradient of blocks
            flops[columns] = grid[0] * 2 * sizes.rows * columns * (TERMS * COLS // columns)
            assert grid == [num_blocks, columns // sizes.product.cols, 1]
    one = 2 * NUM_ROWS * TERMS * COLS
    assert flops.keys() == {TERMS, COLS}
    assert all(one <= each <= 1.05 * one for each in flops.values())
    if formats == FP8:
        # Tensor cores of Hopper, on the formats themselves: each instruction by its operands.
        ptx = "".join(path.read_text() for path in tmp_path.glob("*.ptx"))
        instructions = set(re.findall(r"(?:wgmma|mma)\S*sync\S*\.f32\.(\w+\.\w+)", ptx))
        assert instructions == {"e4m3.e4m3", "e5m2.e4m3", "e4m3.e5m2"}


@pytest.mark.aot
@pytest.mark.usefixtures("gpu_compiler")
def test_fp8_is_refused_before_it_is_compiled_to_something_else(tmp_path):
    with pytest.raises(ValueError, match=r"float8_e4m3fn has no matmul on this device"):
        compiled("a100", FP8, tmp_path)
