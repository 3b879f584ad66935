import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxtrain.parallel import sharding
from jaxtrain.parallel.mesh import MeshConfig, make_mesh

MESH = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


@pytest.mark.parametrize(
    ("table", "letters", "spec"),
    [
        ("zero3", "LDNH", P(None, "fsdp", "tensor", None)),
        ("zero3", "VD", P("tensor", "fsdp")),
        ("zero3", "LD", P(None, "fsdp")),
        ("zero3", "", P()),
    ],
)
def test_partition_spec_of_parameters_is_looked_up_by_letter(table, letters, spec):
    assert sharding.partition_spec(letters, sharding.TABLES[table].params) == spec


def test_zero_tables_split_what_each_stage_names():
    specs = {
        name: tuple(
            sharding.partition_spec("DF", part) for part in (t.params, t.grads, t.opt_state)
        )
        for name, t in sharding.TABLES.items()
    }
    whole, split, over_data = P(None, "tensor"), P("fsdp", "tensor"), P(("data", "fsdp"), "tensor")
    assert specs == {
        "zero1": (whole, whole, over_data),
        "zero2": (whole, split, split),
        "zero3": (split, split, split),
    }


def test_partition_spec_refuses_an_unknown_letter():
    with pytest.raises(ValueError, match="'X' is not a dimension"):
        sharding.partition_spec("DX", sharding.TABLES["zero3"].params)


def test_partition_spec_refuses_two_letters_on_one_axis():
    with pytest.raises(ValueError, match="N and F both lie on mesh axis 'tensor'"):
        sharding.partition_spec("NF", sharding.TABLES["zero3"].params)


def test_named_shardings_follow_the_tree():
    tree = {"a": "DF", "b": {"c": ""}}
    found = sharding.named_shardings(tree, sharding.TABLES["zero3"].params, MESH)
    assert found == {
        "a": NamedSharding(MESH, P("fsdp", "tensor")),
        "b": {"c": NamedSharding(MESH, P())},
    }


def test_constrain_pins_the_residual_stream_along_the_sequence():
    constrain = sharding.Constrain(MESH)
    x = jax.jit(lambda x: constrain(x, "BTD"))(jnp.zeros((4, 8, 6)))
    assert x.sharding.is_equivalent_to(
        NamedSharding(MESH, P(("data", "fsdp"), ("context", "tensor"), None)), 3
    )


def test_constrain_leaves_out_axes_that_do_not_divide():
    constrain = sharding.Constrain(MESH)
    x = jax.jit(lambda x: constrain(x, "BTD"))(jnp.zeros((4, 1, 6)))
    assert x.sharding.is_equivalent_to(NamedSharding(MESH, P(("data", "fsdp"))), 3)


def test_constrain_refuses_an_unknown_signature():
    with pytest.raises(ValueError, match="activation 'BTX' is not in"):
        sharding.Constrain(MESH)(jnp.zeros((2, 2, 2)), "BTX")


def test_check_divides_names_parameter_axis_and_sizes():
    shapes = {"attention": {"query": jax.ShapeDtypeStruct((8, 3, 4), jnp.float32)}}
    axes = {"attention": {"query": "DNH"}}
    table = sharding.TABLES["zero3"].params
    message = r"config\.mesh\.tensor=2 must divide query heads \(N=3\) of parameter attention/query"
    with pytest.raises(ValueError, match=message):
        sharding.check_divides(axes, shapes, table, MESH)
    sharding.check_divides({"q": "DNH"}, {"q": jnp.zeros((8, 4, 4))}, table, MESH)


def test_check_divides_names_experts_that_their_axis_does_not_divide():
    mesh = make_mesh(MeshConfig(data=1, expert=8))
    shapes = {"w_up_EDF": jax.ShapeDtypeStruct((12, 4, 4), jnp.float32)}
    with pytest.raises(ValueError, match=r"config\.mesh\.expert=8 must divide experts \(E=12\)"):
        sharding.check_divides({"w_up_EDF": "EDF"}, shapes, sharding.TABLES["zero3"].params, mesh)


def test_check_divides_takes_the_product_of_the_axes_of_one_letter():
    table = sharding.TABLES["zero1"].opt_state
    message = r"config\.mesh\.data=2 × config\.mesh\.fsdp=2 must divide model width \(D=2\)"
    with pytest.raises(ValueError, match=message):
        sharding.check_divides({"norm": "D"}, {"norm": jnp.zeros(2)}, table, MESH)
