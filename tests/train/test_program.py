import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.train import stand_in


def test_abstract_state_has_shapes_and_shardings_and_allocates_nothing():
    program = stand_in.program(num_devices=4, data=1, fsdp=2, tensor=2)
    state = program.abstract_state
    assert isinstance(state.params["up"], jax.ShapeDtypeStruct)
    assert state.params["up"].sharding.spec == P("fsdp", "tensor")
    assert state.step.sharding.spec == P()
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.shape == (8, 8)]
    assert {leaf.sharding.spec for leaf in moments} == {P("fsdp", "tensor"), P("tensor", "fsdp")}


@pytest.mark.parametrize(
    ("zero", "params", "moments"),
    [
        ("zero1", P(None, "tensor"), P(("data", "fsdp"), "tensor")),
        ("zero2", P(None, "tensor"), P("fsdp", "tensor")),
        ("zero3", P("fsdp", "tensor"), P("fsdp", "tensor")),
    ],
)
def test_zero_tables_decide_where_parameters_and_moments_lie(zero, params, moments):
    program = stand_in.program(num_devices=8, data=2, fsdp=2, tensor=2, sharding=zero)
    state, _ = stand_in.run(program, [stand_in.batch()])
    assert state.params["up"].sharding.spec == params
    specs = {x.sharding.spec for x in jax.tree.leaves(state.opt_state) if x.shape == (8, 8)}
    assert moments in specs  # of "DF"; "FD" has its mirror image


@pytest.mark.parametrize("fields", [{"data": 8}, {"data": 1, "fsdp": 4, "tensor": 2}], ids=str)
def test_init_gives_the_same_values_on_every_mesh(fields):
    alone = jax.device_get(stand_in.program().init())
    spread = jax.device_get(stand_in.program(num_devices=8, **fields).init())
    jax.tree.map(np.testing.assert_array_equal, alone, spread)


def test_lower_needs_no_arrays():
    program = stand_in.program(num_devices=8, data=2, fsdp=2, tensor=2)
    batch = stand_in.batch()
    text = program.lower(batch).compile().as_text()
    assert "all-reduce" in text or "reduce-scatter" in text


def test_local_rows_are_the_batch_of_a_single_process():
    assert stand_in.program(num_devices=8).local_rows(16) == slice(0, 16)


def test_local_rows_refuses_a_batch_that_does_not_divide():
    program = stand_in.program(num_devices=8, num_microbatches=2)
    with pytest.raises(ValueError, match="batch_size=24 must be a multiple of 8 batch shards × 2"):
        program.local_rows(24)


def test_check_refuses_a_mesh_that_does_not_divide_a_parameter():
    program = stand_in.program(num_devices=3, tensor=3, data=1)
    with pytest.raises(ValueError, match=r"config\.mesh\.tensor=3 must divide"):
        program.check()
