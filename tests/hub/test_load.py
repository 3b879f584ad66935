import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxtrain.hub import load
from jaxtrain.hub.load import abstract_model, check_fits, load_params
from jaxtrain.hub.model import HubModel
from jaxtrain.models.parameters import flatten
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import TABLES, named_shardings
from tests.hub.tiny import D, H, K, L, N, V, tensors, write


def wanted(config, mesh):
    parts = abstract_model(config)
    where = named_shardings(parts.axes, TABLES["zero3"].params, mesh)
    shapes = jax.tree.map(
        lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at),
        parts.params,
        where,
    )
    return shapes, parts.axes


def expected(content):
    """Our tree from theirs, written out by hand."""

    def stack(name):
        return np.stack([content[f"model.layers.{layer}.{name}.weight"] for layer in range(L)])

    def turned(name, *shape):
        return stack(name).transpose(0, 2, 1).reshape(L, *shape)

    return {
        "embedding_VD": content["model.embed_tokens.weight"],
        "final_norm.scale": content["model.norm.weight"],
        "w_head_DV": content["lm_head.weight"].T,
        "blocks.attention_norm.scale": stack("input_layernorm"),
        "blocks.ffn_norm.scale": stack("post_attention_layernorm"),
        "blocks.attention.w_q_DNH": turned("self_attn.q_proj", D, N, H),
        "blocks.attention.w_k_DKH": turned("self_attn.k_proj", D, K, H),
        "blocks.attention.w_v_DKH": turned("self_attn.v_proj", D, K, H),
        "blocks.attention.w_o_NHD": turned("self_attn.o_proj", N, H, D),
        "blocks.ffn.w_gate_DF": stack("mlp.gate_proj").transpose(0, 2, 1),
        "blocks.ffn.w_up_DF": stack("mlp.up_proj").transpose(0, 2, 1),
        "blocks.ffn.w_down_FD": stack("mlp.down_proj").transpose(0, 2, 1),
    }


@pytest.mark.parametrize("piece_bytes", [2**28, 40, 700])
@pytest.mark.parametrize(
    ("dtype", "mesh"),
    [("float32", {}), ("bfloat16", {"fsdp": 4}), ("float16", {"fsdp": 2, "tensor": 1, "data": 2})],
)
def test_parameters_are_the_tensors_turned_and_on_their_mesh(
    tmp_path, monkeypatch, dtype, mesh, piece_bytes
):
    """In one piece, in parts of a matrix, and two layers at a time."""
    monkeypatch.setattr(load, "_piece_bytes", lambda sharding: piece_bytes)  # as on GPUs
    content = tensors(dtype)
    model = HubModel(write(tmp_path, content))
    sizes = {"data": 1, **mesh}
    devices = jax.devices()[: int(np.prod(list(sizes.values())))]
    shapes, axes = wanted(model.config, make_mesh(MeshConfig(**sizes), devices))
    found = flatten(load_params(model, shapes, axes))
    for path, values in expected(content).items():
        assert found[path].sharding == flatten(shapes)[path].sharding
        assert found[path].dtype == np.float32
        np.testing.assert_array_equal(found[path], values.astype(np.float32), err_msg=path)


def test_pieces_are_for_devices_that_are_not_the_host():
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert load._piece_bytes(host) == float("inf")
    device: Any = SimpleNamespace(device_set=[SimpleNamespace(platform="gpu")])
    assert load._piece_bytes(device) == load.PIECE_BYTES


def test_padding_of_the_vocabulary_is_zero(tmp_path):
    content = tensors()
    model = HubModel(write(tmp_path, content))
    config = dataclasses.replace(model.config, vocab_multiple=16)  # 24 -> 32
    mesh = make_mesh(MeshConfig(data=1, fsdp=2, tensor=1), jax.devices()[:2])
    shapes, axes = wanted(config, mesh)
    params = load_params(model, shapes, axes)
    for table, values in (
        (params["embedding_VD"], content["model.embed_tokens.weight"]),
        (params["w_head_DV"].T, content["lm_head.weight"]),
    ):
        np.testing.assert_array_equal(table[:V], values)
        np.testing.assert_array_equal(table[V:], np.zeros((8, D)))


def test_a_model_of_another_shape_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    model = HubModel(write(tmp_path))
    config = dataclasses.replace(model.config, d_ff=16)
    shapes, axes = wanted(config, make_mesh(MeshConfig(data=1), jax.devices()[:1]))
    monkeypatch.setattr(model.tensors, "read", lambda name: pytest.fail("was read"))
    with pytest.raises(ValueError, match=r"mlp.gate_proj.weight has the shape \[12, 8\], not \[16"):
        check_fits(model, shapes, axes)
    with pytest.raises(ValueError, match="not hold the model"):
        load_params(model, shapes, axes)


@pytest.mark.parametrize("most_bytes", [10**6, 1000, 400, 100, 60, 20, 4])
@pytest.mark.parametrize(
    "mesh_axes", [(None,) * 4, (None, "fsdp", None, None), ("fsdp", None, "data", None)]
)
def test_the_host_holds_one_piece_at_a_time(monkeypatch, most_bytes, mesh_axes):
    """Layers, experts and rows of stacked experts, for any sharding; no piece is larger."""
    mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    values = np.arange(2 * 4 * 6 * 5, dtype=np.float32).reshape(2, 4, 6, 5)
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*mesh_axes))
    target = jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=where)
    made, aligned = [], load._aligned
    monkeypatch.setattr(load, "_piece_bytes", lambda sharding: most_bytes)
    monkeypatch.setattr(load, "_aligned", lambda *args: made.append(aligned(*args)) or made[-1])
    found = load._assemble(lambda index: values[index].T.copy().T, target, 2)
    np.testing.assert_array_equal(found, values)
    assert found.sharding == where
    # A column of 6 lies in one piece in the file, and is never cut.
    assert max(each.nbytes for each in made) <= max(most_bytes, 6 * 4)
    assert sum(each.nbytes for each in made) == values.nbytes  # nothing was read twice
