import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.kernels import blocks
from jaxtrain.kernels.block_scaled_matmul import TILE, Spec, block_scaled_matmul
from jaxtrain.kernels.blocks import Block
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot, hlo

SPEC = Spec(Block(16, 32, 4, 2), interpret=True)
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
FORMATS = st.sampled_from([E4M3, E5M2])


def draw(num_rows, num_cols, num_terms, *, shared, of_a=E4M3, of_b=E4M3):
    """Operands of the kernel; scales are powers of two, six binades apart."""
    rng = np.random.default_rng(0)
    num_tiles = -(-num_terms // TILE)
    of_cols = -(-num_cols // TILE) if shared else num_cols
    values = [rng.normal(size=(rows, num_terms)) * 4 for rows in (num_rows, num_cols)]
    scales = [2.0 ** rng.integers(-3, 4, (rows, num_tiles)) for rows in (num_rows, of_cols)]
    scale_a, scale_b = (jnp.asarray(x, jnp.float32) for x in scales)
    return jnp.asarray(values[0], of_a), scale_a, jnp.asarray(values[1], of_b), scale_b


def reference(a, scale_a, b, scale_b):
    """(The product, the sum of its terms' magnitudes) of dequantised operands in float64."""
    rows_of_b = 1 if len(scale_b) == len(b) else TILE
    wide = []
    for x, scale, rows in ((a, scale_a, 1), (b, scale_b, rows_of_b)):
        spread = np.repeat(np.repeat(np.asarray(scale, np.float64), rows, 0), TILE, 1)
        wide.append(np.asarray(x, np.float64) * spread[: x.shape[0], : x.shape[1]])
    return wide[0] @ wide[1].T, np.abs(wide[0]) @ np.abs(wide[1]).T


@functools.partial(jax.jit, static_argnums=(0, 1))
def product(spec, dtype, a, scale_a, b, scale_b):
    return block_scaled_matmul(spec, a, scale_a, b, scale_b, dtype)


@settings(max_examples=8)
@given(
    num_rows=st.integers(1, 40), num_cols=st.integers(1, 140), num_terms=st.integers(1, 300),
    shared=st.booleans(), of_a=FORMATS, of_b=FORMATS,
)  # fmt: skip
def test_product_of_any_sizes_and_formats_equals_float64_on_dequantised_operands(
    num_rows, num_cols, num_terms, shared, of_a, of_b
):
    operands = draw(num_rows, num_cols, num_terms, shared=shared, of_a=of_a, of_b=of_b)
    expected, magnitudes = reference(*operands)
    actual = product(SPEC, jnp.float32, *operands)
    # Float32 sums of n numbers are within n · 2^-24 of the sum of their magnitudes.
    assert (np.abs(actual - expected) <= num_terms * 2.0**-24 * magnitudes).all()


@pytest.mark.parametrize("shared", [True, False])
def test_result_of_more_blocks_than_run_side_by_side_is_whole_and_rounded_once(shared):
    """11 × 9 blocks, neither a multiple of the 8 that run side by side."""
    operands = draw(170, 270, 128, shared=shared)
    expected, _ = reference(*operands)
    actual = product(SPEC, jnp.bfloat16, *operands)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=2**-8, atol=1e-3)


def test_nan_in_a_scale_reaches_all_that_it_stands_for_and_nothing_else():
    a, scale_a, b, scale_b = draw(20, 140, 200, shared=True)
    of_row = product(SPEC, jnp.float32, a, scale_a.at[3, 1].set(jnp.nan), b, scale_b)
    np.testing.assert_array_equal(np.isnan(of_row).any(axis=1), np.arange(20) == 3)
    assert np.isnan(of_row[3]).all()
    of_block = product(SPEC, jnp.float32, a, scale_a, b, scale_b.at[1, 0].set(jnp.nan))
    np.testing.assert_array_equal(np.isnan(of_block).any(axis=0), np.arange(140) >= 128)
    assert np.isnan(of_block[:, 128:]).all()


def test_operands_and_scales_that_do_not_fit_are_one_line():
    a, scale_a, b, scale_b = draw(20, 140, 200, shared=True)
    with pytest.raises(ValueError, match=r"scales \(20, 2\) and \(2, 2\), not \(20, 1\) and"):
        block_scaled_matmul(SPEC, a, scale_a[:, :1], b, scale_b, jnp.float32)
    with pytest.raises(ValueError, match=r"operands \(20, 200\) and \(140, 199\) need as many"):
        block_scaled_matmul(SPEC, a, scale_a, b[:, 1:], scale_b, jnp.float32)


@pytest.mark.aot
@pytest.mark.usefixtures("gpu_compiler")
def test_compiled_for_an_h100_it_reads_fp8_and_is_no_more_work_than_there_is():
    """FLOPs are those of the grid: each program multiplies all terms of one block."""
    num_rows, num_cols, num_terms = 1024, 2048, 512
    (device,) = aot.compile_only_devices("h100", 1)
    whole = NamedSharding(make_mesh(MeshConfig(), [device]), PartitionSpec())
    block = blocks.block_scaled_matmul(device)
    operands = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=whole)
        for shape, dtype in (
            ((num_rows, num_terms), E5M2), ((num_rows, num_terms // TILE), jnp.float32),
            ((num_cols, num_terms), E4M3), ((num_cols // TILE, num_terms // TILE), jnp.float32),
        )
    ]  # fmt: skip
    lowered = product.trace(Spec(block), jnp.bfloat16, *operands)
    compiled = lowered.lower(lowering_platforms=("cuda",)).compile(
        compiler_options={
            "xla_gpu_autotune_level": "0",
            # Sums of 128 terms and their total have to be in registers at once.
            "xla_gpu_fail_ptx_compilation_on_register_spilling": True,
        }
    )
    text = compiled.as_text() or ""
    (kernel,) = hlo.read(text).kernels
    assert (kernel.target, "block_scaled_kernel" in kernel.op_name) == (
        "__gpu$xla.gpu.triton",
        True,
    )
    assert [each.dtype for each in kernel.operands] == ["f8e5m2", "f32", "f8e4m3fn", "f32"]
    (num_programs,) = (int(size) for size in re.findall(r"grid_x = (\d+)", text))
    flops = num_programs * 2 * block.rows * block.cols * num_terms
    assert flops == 2 * num_rows * num_cols * num_terms
    # Beside the result there are copies of scales, and none of an operand.
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < num_rows * num_terms / 8
