import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxtrain.models.chunked_attention import SAVED_NAME, Spec, attend

CAUSAL = Spec(causal=True, window=None, softcap=None, scale=0.25, block=128)


def output_and_gradients(spec, q, k, v, segment_ids, do):
    output, pull = jax.vjp(lambda q, k, v: attend(spec, q, k, v, segment_ids), q, k, v)
    return output, *pull(do)


@pytest.mark.parametrize("causal", [True, False])
def test_memory_grows_linearly_with_the_length(causal):
    spec = Spec(causal=causal, window=None, softcap=None, scale=0.25, block=256)

    def temporary_bytes(length):
        q, k = (jax.ShapeDtypeStruct((1, length, n, 16), jnp.float32) for n in (2, 1))
        segment_ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        f = jax.jit(functools.partial(output_and_gradients, spec))
        return f.lower(q, k, k, segment_ids, q).compile().memory_analysis().temp_size_in_bytes

    once, twice = temporary_bytes(8192), temporary_bytes(16384)
    assert twice < 2.1 * once
    assert once < 8192**2  # a quarter of one float32 score matrix of one of the two heads


def test_blocks_out_of_sight_are_not_visited():
    def num_visits(causal, window, length=1024):
        spec = Spec(causal, window, softcap=None, scale=1.0, block=128)
        x = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
        jaxpr = jax.make_jaxpr(lambda x: attend(spec, x, x, x, None))(x)
        return int(re.search(r"length=(\d+)", str(jaxpr))[1])

    assert num_visits(causal=False, window=None) == 8 * 8
    assert num_visits(causal=True, window=None) == 8 * 9 // 2
    assert num_visits(causal=True, window=1) == 8
    assert num_visits(causal=True, window=2) == 8 + 7  # the first token of a block sees one before
    assert num_visits(causal=True, window=129) == 8 + 7
    assert num_visits(causal=True, window=130) == 8 + 7 + 6
    assert num_visits(causal=False, window=2) == 8 + 7 + 7
    assert num_visits(causal=True, window=None, length=130) == 3  # two blocks of 65


def test_program_does_not_grow_with_the_number_of_blocks():
    def num_operations(length):
        x = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
        f = functools.partial(output_and_gradients, CAUSAL)
        return str(jax.make_jaxpr(f)(x, x, x, None, x)).count(" = ")

    assert num_operations(128 * 64) == num_operations(128 * 4)


def test_remat_that_saves_the_name_does_not_run_the_forward_pass_again():
    def num_loops(policy):
        def total(q):
            return jnp.sum(
                jax.checkpoint(lambda q: attend(CAUSAL, q, q, q, None), policy=policy)(q)
            )

        q = jax.ShapeDtypeStruct((1, 256, 1, 8), jnp.float32)
        return str(jax.make_jaxpr(jax.grad(total))(q)).count("scan[")

    policies = jax.checkpoint_policies
    assert num_loops(policies.save_only_these_names(SAVED_NAME)) == 2
    assert num_loops(policies.nothing_saveable) == 3


def test_split_batch_and_heads_need_no_communication():
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    spec = Spec(causal=True, window=None, softcap=None, scale=0.25, block=16)
    by_head = NamedSharding(mesh, PartitionSpec("data", None, "tensor"))
    rng = np.random.default_rng(0)
    q, k, v, do = (jnp.asarray(rng.normal(size=(4, 45, n, 8)), jnp.float32) for n in (4, 2, 2, 4))
    segment_ids = jnp.asarray(rng.integers(0, 3, (4, 45)), jnp.int32)
    f = jax.jit(functools.partial(output_and_gradients, spec))
    expected = f(q, k, v, segment_ids, do)

    q, k, v, do = jax.device_put((q, k, v, do), by_head)
    segment_ids = jax.device_put(segment_ids, NamedSharding(mesh, PartitionSpec("data")))
    compiled = f.lower(q, k, v, segment_ids, do).compile()
    collective = re.search(
        r"all-reduce|all-gather|all-to-all|permute|reduce-scatter", compiled.as_text()
    )
    assert collective is None
    for x, y in zip(compiled(q, k, v, segment_ids, do), expected, strict=True):
        assert x.sharding.is_equivalent_to(by_head, x.ndim)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
