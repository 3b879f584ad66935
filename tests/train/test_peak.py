import jax
import jax.numpy as jnp
import pytest

from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.train import peak


class Chip:
    """A device of a named kind."""

    def __init__(self, kind):
        self.device_kind = kind


class FakeMesh:
    def __init__(self, kind, size):
        import numpy as np

        self.devices, self.size = np.array([Chip(kind)] * size), size


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [("NVIDIA H100 80GB HBM3", 989.0), ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA B200", 2250.0)],
)
def test_peak_of_a_known_chip_is_its_data_sheet_times_devices(kind, tflops):
    flops, source = peak.peak_flops(FakeMesh(kind, 8), jnp.bfloat16)
    assert flops == 8 * tflops * 1e12
    assert source.startswith("dense bfloat16 peak of 8 × ")


@pytest.mark.parametrize(
    ("kind", "recipe", "tflops"),
    [
        ("NVIDIA H200", "fp8", 1979.0),
        ("NVIDIA H200", "bfloat16", 989.0),
        ("NVIDIA B200", "mxfp8", 4500.0),
        ("NVIDIA B200", "nvfp4", 9000.0),
    ],
)
def test_peak_of_a_recipe_is_that_of_its_format(kind, recipe, tflops):
    flops, source = peak.recipe_peak(FakeMesh(kind, 2), recipe)
    assert flops == 2 * tflops * 1e12
    assert source == f"dense {recipe} peak of 2 × {kind.removeprefix('NVIDIA ')}"


@pytest.mark.parametrize(
    ("kind", "recipe"),
    [("NVIDIA A100-SXM4-80GB", "fp8"), ("NVIDIA H100", "nvfp4"), ("NVIDIA H100", "float32")],
)
def test_chip_without_a_format_has_no_peak_in_it(kind, recipe):
    assert peak.recipe_peak(FakeMesh(kind, 1), recipe) is None


def test_peak_elsewhere_is_measured_and_says_so():
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    flops, source = peak.peak_flops(mesh, jnp.float32)
    assert source == "matmul measured in this process"
    assert 1e9 < flops < 1e15  # between a watch and a data centre: the unit is FLOP/s
