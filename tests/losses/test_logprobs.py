import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.losses.logprobs import segment_sums, token_logprobs
from jaxtrain.parallel.mesh import BATCH_AXES, MeshConfig, batch_shards, make_mesh
from jaxtrain.parallel.sharding import Constrain, batch_sharding
from jaxtrain.types import Batch
from tests.losses.given_states import GivenStates, unconstrained

B, T, D, V = 8, 24, 16, 64


def draw(length=T):
    """States, head, a batch with a third of the weights 0, and a cotangent for each token."""
    rng = np.random.default_rng(0)
    h, w = rng.normal(size=(B, length, D)), rng.normal(size=(D, V))
    targets = rng.integers(0, V, (B, length)).astype(np.int32)
    weights = rng.choice([0.0, 0.5, 1.0], (B, length)).astype(np.float32)
    cotangent = rng.normal(size=(B, length))
    return h, w, Batch(targets, targets, weights, targets, targets), cotangent


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def logprobs_and_gradients(chunk_tokens, softcap, recipe, constrain, h, w, batch, cotangent):
    def logprobs(h, w):
        model = GivenStates(h, w, softcap, recipe, constrain or unconstrained, V)
        return token_logprobs(model, h, batch, chunk_tokens)

    values, pull = jax.vjp(logprobs, h, w)
    return values, pull(cotangent)


def run(chunk_tokens, h, w, batch, cotangent, softcap=None, recipe="float32", dtype=jnp.float32):
    h, w = h.astype(jnp.dtype(dtype)), w.astype(jnp.dtype(dtype))
    cotangent = cotangent.astype(np.float32)
    return logprobs_and_gradients(chunk_tokens, softcap, recipe, None, h, w, batch, cotangent)


def reference(h, w, batch, cotangent, softcap=None):
    """Values and gradients in float64, from all logits at once."""
    logits, slope = h @ w, 1.0
    if softcap is not None:
        tanh = np.tanh(logits / softcap)
        logits, slope = softcap * tanh, 1 - tanh**2
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    hits, counts = np.eye(V)[batch.targets], batch.loss_weights != 0
    dlogits = (hits - np.exp(logprobs)) * slope * np.where(counts, cotangent, 0)[..., None]
    values = np.where(counts, (logprobs * hits).sum(-1), 0)
    return values, (dlogits @ w.T, np.einsum("btd,btv->dv", h, dlogits))


def max_error(actual, expected):
    return np.abs(np.asarray(actual, np.float64) - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
    ("chunk_tokens", "softcap", "length"),
    [(1, None, T), (40, None, T), (10_000, None, T), (48, 2.0, 23), (8, None, 1)],
)
def test_values_and_gradients_equal_float64_reference(chunk_tokens, softcap, length):
    h, w, batch, cotangent = draw(length)
    actual = run(chunk_tokens, h, w, batch, cotangent, softcap)
    expected = reference(h, w, batch, cotangent, softcap)
    assert actual[0].dtype == jnp.float32
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert max_error(x, y) < 1e-6


def test_bfloat16_gradients_have_its_dtype_and_are_near_the_reference():
    h, w, batch, cotangent = draw()
    h, w = (np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (h, w))
    values, grads = run(48, h, w, batch, cotangent, None, "bfloat16", jnp.bfloat16)
    expected, expected_grads = reference(h, w, batch, cotangent)
    assert values.dtype == jnp.float32
    assert max_error(values, expected) < 1e-5  # float32 logits
    for x, y in zip(grads, expected_grads, strict=True):
        assert x.dtype == jnp.bfloat16
        assert max_error(x, y) < 1e-2  # 8 bits of mantissa, twice


@pytest.mark.parametrize("filler", [np.nan, np.inf])
def test_weight_zero_is_zero_and_keeps_non_finite_states_and_cotangents_out(filler):
    h, w, batch, cotangent = draw()
    clean = run(48, h, w, batch, cotangent)
    outside = batch.loss_weights == 0
    h[outside] = cotangent[outside] = filler
    actual = run(48, h, w, batch, cotangent)
    assert jax.tree.all(jax.tree.map(np.array_equal, actual, clean))
    assert not np.asarray(actual[0])[outside].any()
    assert not np.asarray(actual[1][0])[outside].any()


@pytest.mark.parametrize("target", [-1, V])
def test_target_outside_the_vocabulary_is_nan_unless_its_weight_is_zero(target):
    h, w, batch, cotangent = draw()
    t = int(np.argmax(batch.loss_weights[0] == 0))
    batch.targets[0, t] = target
    assert np.isfinite(run(48, h, w, batch, cotangent)[0]).all()
    batch.loss_weights[0, t] = 1
    assert np.isnan(run(48, h, w, batch, cotangent)[0][0, t])


def test_padding_of_the_vocabulary_takes_no_part():
    h, w, batch, cotangent = draw()
    padded = np.concatenate([w, np.full((D, 8), 50.0)], axis=1)
    values, (dh, dw) = run(48, h, padded, batch, cotangent, 2.0)
    expected, (dh_expected, dw_expected) = run(48, h, w, batch, cotangent, 2.0)
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    np.testing.assert_allclose(dh, dh_expected, atol=1e-5)
    np.testing.assert_allclose(dw[:, :V], dw_expected, atol=1e-5)
    np.testing.assert_array_equal(dw[:, V:], 0)


def test_logits_are_visited_twice_at_most_and_never_exist_for_the_batch():
    length, vocab = 512, 4096
    h, w = (
        jax.ShapeDtypeStruct((4, length, D), jnp.float32),
        jax.ShapeDtypeStruct((D, vocab), jnp.float32),
    )
    ids, floats = (jax.ShapeDtypeStruct((4, length), x) for x in (jnp.int32, jnp.float32))
    batch = Batch(ids, ids, floats, ids, ids)
    function = functools.partial(logprobs_and_gradients, 128, None, "float32", None)
    matmuls = str(jax.make_jaxpr(function)(h, w, batch, floats)).count("dot_general[")
    assert matmuls == 4  # logits twice, gradients of states and head
    lowered = logprobs_and_gradients.lower(128, None, "float32", None, h, w, batch, floats)
    logits_bytes = 4 * length * vocab * 4
    assert lowered.compile().memory_analysis().temp_size_in_bytes < logits_bytes / 4


@pytest.mark.parametrize(
    "mesh_config",
    [MeshConfig(data=1, fsdp=8), MeshConfig(data=2, fsdp=2, tensor=2)],
    ids=["fsdp", "mixed"],
)
def test_values_and_gradients_on_a_mesh_equal_those_of_one_device(mesh_config):
    mesh = make_mesh(mesh_config)
    h, w, batch, cotangent = draw()
    expected = run(48, h, w, batch, cotangent, 2.0)
    by_weight = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    by_state = NamedSharding(mesh, PartitionSpec(BATCH_AXES, "tensor"))
    h = jax.device_put(jnp.asarray(h, jnp.float32), by_state)
    w = jax.device_put(jnp.asarray(w, jnp.float32), by_weight)
    batch, cotangent = jax.device_put((batch, cotangent.astype(np.float32)), batch_sharding(mesh))
    chunk_tokens = 48 // batch_shards(mesh)
    compiled = logprobs_and_gradients.lower(
        chunk_tokens, 2.0, "float32", Constrain(mesh), h, w, batch, cotangent
    ).compile()
    actual = compiled(h, w, batch, cotangent)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert max_error(x, np.asarray(y)) < 1e-6


@hypothesis.given(st.lists(st.integers(0, 4), min_size=12, max_size=12), st.sampled_from([1, 4, 6]))
def test_segment_sums_equal_those_of_a_loop(ids, num_segments):
    ids = np.sort(np.array([ids, ids[::-1]], np.int32), axis=1)
    x = np.random.default_rng(0).normal(size=ids.shape).astype(np.float32)
    expected = [[x[b][ids[b] == q + 1].sum() for q in range(num_segments)] for b in range(2)]
    np.testing.assert_allclose(segment_sums(x, ids, num_segments), expected, atol=1e-5)


def test_segment_sums_keep_what_is_not_finite_in_its_own_segment():
    sums = segment_sums(
        np.array([[1.0, np.nan, 2.0, np.inf]], np.float32), np.array([[1, 2, 1, 0]], np.int32), 3
    )
    np.testing.assert_array_equal(sums, [[3.0, np.nan, 0.0]])
