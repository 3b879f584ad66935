import types

import pytest

from jaxtrain.kernels import blocks
from jaxtrain.kernels.block_scaled_matmul import TILE
from jaxtrain.planning.targets import TARGETS


def device(target):
    major, minor = TARGETS[target].compute_capability
    return types.SimpleNamespace(compute_capability=f"{major}.{minor}")


@pytest.mark.parametrize(
    ("target", "name"),
    [("a100", "ampere"), ("h100", "hopper"), ("h200", "hopper"), ("b200", "hopper")],
)
def test_generation_goes_by_compute_capability(target, name):
    assert blocks.generation(device(target)) == name


@pytest.mark.parametrize(
    ("capability", "expected"), [("8.0", False), ("8.6", False), ("8.9", True), ("10.0", True)]
)
def test_fp8_is_there_from_compute_capability_8_9_on(capability, expected):
    assert blocks.has_fp8(types.SimpleNamespace(compute_capability=capability)) == expected
    assert not blocks.has_fp8(object())  # no GPU


def test_float32_heads_count_as_twice_as_large():
    table = blocks.FLASH_ATTENTION["hopper"]
    assert blocks.flash_attention(device("h100"), 128, 2) == table[128]
    assert blocks.flash_attention(device("h100"), 80, 2) == table[128]
    assert blocks.flash_attention(device("h100"), 128, 4) == table[256]
    assert blocks.flash_attention(device("h100"), 256, 4) == table[512]


def test_heads_above_the_largest_are_refused():
    with pytest.raises(ValueError, match="head size 257 must be at most 256"):
        blocks.flash_attention(device("a100"), 257, 2)


def test_columns_of_fp8_tiles_share_one_scale_of_a_weight():
    for block in blocks.BLOCK_SCALED_MATMUL.values():
        assert TILE % block.cols == 0
        assert block.rows >= 16
        assert block.rows & (block.rows - 1) == 0


def test_sizes_are_powers_of_two_that_tensor_cores_take():
    for table in blocks.FLASH_ATTENTION.values():
        assert max(table) == 2 * blocks.MAX_HEAD_DIM
        for sizes in table.values():
            for block in (sizes.forward, sizes.of_queries, sizes.of_keys):
                for size in (block.rows, block.cols):
                    assert size >= 16
                    assert size & (size - 1) == 0
