import jax
import pytest
from jax.sharding import AxisType

from jaxtrain.parallel.mesh import AXES, MeshConfig, batch_shards, describe, make_mesh


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({}, (8, 1, 1, 1, 1, 1)),
        ({"data": 1, "fsdp": 0}, (1, 8, 1, 1, 1, 1)),
        ({"data": 2, "fsdp": 2, "tensor": 2}, (2, 2, 1, 1, 1, 2)),
        ({"data": 0, "tensor": 4}, (2, 1, 1, 1, 1, 4)),
    ],
)
def test_shape_fills_one_axis_with_the_remaining_devices(sizes, shape):
    assert MeshConfig(**sizes).shape(8) == shape


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor": 3}, "mesh tensor=3 must divide the 8 devices"),
        ({"data": 2, "fsdp": 2}, "mesh data=2 × fsdp=2 needs 4 devices but 8 are here"),
    ],
)
def test_shape_refuses_sizes_that_do_not_use_the_devices(sizes, message):
    with pytest.raises(ValueError, match=message):
        MeshConfig(**sizes).shape(8)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"fsdp": -1}, "fsdp=-1 must be at least 1"),
        ({"fsdp": 0}, "fsdp=0 must be at least 1: data=0 takes what is left"),
        ({"pipe": 2}, "pipe=2 must be 1: this axis is not built yet"),
        ({"pipe": 2}, "pipe=2 must be 1"),
        ({"context": 2}, "context=2 must be 1"),
    ],
)
def test_config_refuses_impossible_sizes_before_devices_are_known(sizes, message):
    with pytest.raises(ValueError, match=message):
        MeshConfig(**sizes)


def test_make_mesh_has_all_six_axes_of_type_auto():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    assert mesh.axis_names == AXES
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert batch_shards(mesh) == 4
    assert describe(mesh) == "data=2 fsdp=2 tensor=2 on 8 × cpu in 1 process(es)"


def test_make_mesh_uses_the_devices_given():
    assert make_mesh(MeshConfig(), jax.devices()[:1]).size == 1
