from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxtrain.train import leaves


class Pair(NamedTuple):
    first: Any
    second: Any


def test_paths_join_fields_indices_and_keys_and_leave_out_empty_parts():
    tree = Pair({"a": {"b": np.zeros(1)}, "none": {}}, (np.zeros(2), (), [np.zeros(3)], None))
    paths = [leaves.dotted(keys) for keys in leaves.named_leaves(tree)]
    assert paths == ["first.a.b", "second.0", "second.2.0"]


def test_nested_leaves_are_found_again_by_their_keys():
    named = leaves.named_leaves({"a": {"b": np.int32(1), "c": (np.int32(2), np.int32(3))}})
    nested = leaves.nest(named)
    assert nested == {"a": {"b": 1, "c": {"0": 2, "1": 3}}}
    assert [leaves.pick(nested, keys) for keys in named] == [1, 2, 3]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"a": {"b": np.zeros(1)}, "a.b": np.zeros(1)},
            "two leaves of the state have the path a.b",
        ),
        ({"a": [3.0]}, r"a\.0 is a float; a state has arrays only"),
        ({"a": np.zeros((0, 3))}, r"a of shape \(0, 3\) is empty"),
    ],
)
def test_states_that_cannot_be_stored_are_refused_by_path(tree, message):
    with pytest.raises(ValueError, match=message):
        leaves.named_leaves(tree)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (P("data", None), "(data, -) on data=2 fsdp=4"),
        (P(None, ("data", "fsdp")), "(-, data+fsdp) on data=2 fsdp=4"),
        (P(), "replicated on 8 devices"),
    ],
)
def test_description_says_how_an_array_lies(spec, text):
    axes = ("data", "fsdp", "tensor")
    mesh = jax.make_mesh((2, 4, 1), axes, axis_types=(AxisType.Auto,) * 3)
    array = jax.device_put(jnp.zeros((8, 8)), NamedSharding(mesh, spec))
    assert leaves.describe(array).sharding == text


def test_description_of_an_array_on_one_device_on_the_host_and_of_keys():
    assert leaves.describe(jnp.zeros(3)).sharding == "one device"
    assert leaves.describe(np.zeros(3, np.int8)).sharding == "host"
    assert leaves.describe(np.zeros((3, 5), np.int16)).num_bytes == 30
    keys = leaves.describe(jax.random.split(jax.random.key(0, impl="rbg"), 3))
    assert (str(keys), keys.key_impl, keys.num_bytes) == ("key<rbg>[3]", "rbg", 3 * 16)
