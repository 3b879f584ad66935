import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.parallel.mesh import BATCH_AXES, MeshConfig, batch_shards, make_mesh
from jaxtrain.parallel.sharding import Constrain, batch_sharding
from jaxtrain.types import Batch
from tests.losses.given_states import GivenStates, unconstrained

B, T, D, V = 8, 24, 16, 64


def draw(length=T, weights=None):
    """Hidden states, head and a batch with uneven weights, about a third of them 0."""
    rng = np.random.default_rng(0)
    h, w = rng.normal(size=(B, length, D)), rng.normal(size=(D, V))
    targets = rng.integers(0, V, (B, length))
    if weights is None:
        weights = rng.choice([0.0, 0.5, 2.0], (B, length))
    return h, w, make_batch(targets, weights)


def make_batch(targets, weights):
    ids = np.zeros(targets.shape, np.int32)
    return Batch(ids, targets.astype(np.int32), weights.astype(np.float32), ids, ids + 1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def sums_and_gradients(config, softcap, recipe, constrain, h, w, batch):
    def loss_sum(h, w):
        model = GivenStates(h, w, softcap, recipe, constrain or unconstrained)
        sums = cross_entropy(config)(model, {}, batch, None)
        return sums.loss_sum, sums

    (_, sums), grads = jax.value_and_grad(loss_sum, argnums=(0, 1), has_aux=True)(h, w)
    return sums, grads


def run(config, h, w, batch, softcap=None, recipe="float32", dtype=jnp.float32):
    return sums_and_gradients(
        config, softcap, recipe, None, jnp.asarray(h, dtype), jnp.asarray(w, dtype), batch
    )


def reference(h, w, batch, softcap=None, z_loss=0.0, label_smoothing=0.0):
    """Sums and gradients of h and w in float64, from all logits at once."""
    weights, hits = batch.loss_weights.astype(np.float64), np.eye(V)[batch.targets]
    logits, slope = h @ w, 1.0
    if softcap is not None:
        tanh = np.tanh(logits / softcap)
        logits, slope = softcap * tanh, 1 - tanh**2
    lse = np.log(np.exp(logits).sum(-1))
    nll = lse - (logits * hits).sum(-1)
    p = np.exp(logits - lse[..., None])
    labels = (1 - label_smoothing) * hits + label_smoothing / V
    dlogits = weights[..., None] * (p * (1 + 2 * z_loss * lse)[..., None] - labels) * slope
    sums = {
        "nll": (weights * nll).sum(),
        "z_loss": (weights * lse**2).sum(),
        "accuracy": (weights * (logits.argmax(-1) == batch.targets)).sum(),
    }
    return sums, (dlogits @ w.T, np.einsum("btd,btv->dv", h, dlogits))


def naive_gradients(h, w, batch):
    """By autodiff from float32 logits of the whole batch."""

    def loss_sum(h, w):
        logprobs = jax.nn.log_softmax(jnp.einsum("btd,dv->btv", h, w))
        return -jnp.sum(
            batch.loss_weights
            * jnp.take_along_axis(logprobs, batch.targets[..., None], axis=-1)[..., 0]
        )

    return jax.jit(jax.grad(loss_sum, argnums=(0, 1)))(
        jnp.asarray(h, jnp.float32), jnp.asarray(w, jnp.float32)
    )


def max_error(actual, expected):
    return np.abs(np.asarray(actual, np.float64) - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
    ("chunk_tokens", "softcap", "z_loss", "length"),
    [
        (1, None, 0.0, T),  # one position of each row at a time
        (40, None, 0.0, T),  # 5 positions do not divide 24: padded
        (10_000, None, 0.0, T),  # all at once
        (48, 2.0, 0.0, T),
        (48, None, 0.01, T),
        (48, 2.0, 0.01, 23),
        (8, None, 0.0, 1),
    ],
)
def test_sums_and_gradients_equal_float64_reference(chunk_tokens, softcap, z_loss, length):
    h, w, batch = draw(length)
    expected, expected_grads = reference(h, w, batch, softcap, z_loss)
    sums, grads = run(XentConfig(z_loss=z_loss, chunk_tokens=chunk_tokens), h, w, batch, softcap)
    assert sums.weight_sum == batch.loss_weights.sum()
    assert set(sums.metric_sums) == (
        {"nll", "accuracy", "z_loss"} if z_loss else {"nll", "accuracy"}
    )
    for name, (total, count) in sums.metric_sums.items():
        assert count == sums.weight_sum
        assert total == pytest.approx(expected[name], rel=1e-6), name
    for actual, x in zip(grads, expected_grads, strict=True):
        assert max_error(actual, x) < 1e-6


@pytest.mark.parametrize("chunk_tokens", [8, 40, 10_000])
def test_gradients_equal_those_of_the_naive_form(chunk_tokens):
    h, w, batch = draw()
    _, grads = run(XentConfig(chunk_tokens=chunk_tokens), h, w, batch)
    for actual, expected in zip(grads, naive_gradients(h, w, batch), strict=True):
        assert max_error(actual, np.asarray(expected)) < 1e-6


@pytest.mark.parametrize(("softcap", "z_loss"), [(None, 0.0), (2.0, 0.01)])
def test_smoothed_labels_give_the_cross_entropy_from_them(softcap, z_loss):
    h, w, batch = draw()
    config = XentConfig(z_loss=z_loss, label_smoothing=0.1, chunk_tokens=40)
    sums, grads = run(config, h, w, batch, softcap)
    expected, expected_grads = reference(h, w, batch, softcap, z_loss, label_smoothing=0.1)
    logits = h @ w if softcap is None else softcap * np.tanh(h @ w / softcap)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    labels = 0.9 * np.eye(V)[batch.targets] + 0.1 / V
    smoothed = -(batch.loss_weights.astype(np.float64) * (labels * logprobs).sum(-1)).sum()
    assert sums.loss_sum == pytest.approx(smoothed + z_loss * expected["z_loss"], rel=1e-6)
    assert sums.metric_sums["nll"][0] == pytest.approx(expected["nll"], rel=1e-6)
    for actual, x in zip(grads, expected_grads, strict=True):
        assert max_error(actual, x) < 1e-6


def test_total_is_nll_plus_weighted_z_loss():
    h, w, batch = draw()
    sums, _ = run(XentConfig(z_loss=0.1), h, w, batch)
    nll, z = sums.metric_sums["nll"][0], sums.metric_sums["z_loss"][0]
    assert sums.loss_sum == pytest.approx(float(nll + 0.1 * z), rel=1e-6)
    assert sums.loss_sum > nll > 0


def test_logits_beyond_the_range_of_exp_are_fine():
    h, w, batch = draw()
    sums, grads = run(XentConfig(chunk_tokens=48), 1e3 * h, w, batch)
    logits = 1e3 * h @ w
    largest = logits.max(-1, keepdims=True)
    nll = np.log(np.exp(logits - largest).sum(-1)) + largest[..., 0]
    nll -= np.take_along_axis(logits, batch.targets[..., None], -1)[..., 0]
    assert sums.loss_sum == pytest.approx((nll * batch.loss_weights).sum(), rel=1e-6)
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("filler", [np.nan, np.inf])
def test_weight_zero_keeps_non_finite_states_out(filler):
    h, w, batch = draw()
    clean, clean_grads = run(XentConfig(z_loss=0.01, chunk_tokens=48), h, w, batch)
    h[batch.loss_weights == 0] = filler
    sums, grads = run(XentConfig(z_loss=0.01, chunk_tokens=48), h, w, batch)
    assert jax.tree.all(jax.tree.map(np.array_equal, (sums, grads), (clean, clean_grads)))
    assert not np.asarray(grads[0])[batch.loss_weights == 0].any()


def test_no_weight_at_all_gives_zero_loss_and_zero_gradients():
    h, w, batch = draw(weights=np.zeros((B, T)))
    sums, grads = run(XentConfig(z_loss=0.01, chunk_tokens=48), h, w, batch)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves((sums, grads)))


@pytest.mark.parametrize("target", [-1, -100, V])
def test_target_outside_the_vocabulary_is_nan_unless_its_weight_is_zero(target):
    h, w, batch = draw()
    t = int(np.argmax(batch.loss_weights[0] == 0))
    batch.targets[0, t] = target
    sums, _ = run(XentConfig(chunk_tokens=48), h, w, batch)
    assert np.isfinite(sums.loss_sum)
    batch.loss_weights[0, t] = 1
    sums, _ = run(XentConfig(chunk_tokens=48), h, w, batch)
    assert np.isnan(sums.loss_sum)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_padding_of_the_vocabulary_takes_no_part(softcap):
    """The head has more columns than there are tokens, of weights that would dominate."""
    h, w, batch = draw()
    padded = np.concatenate([w, np.full((D, 8), 50.0)], axis=1)
    config = XentConfig(z_loss=0.1, label_smoothing=0.1, chunk_tokens=48)

    @jax.jit
    def both(h, w, batch):
        def loss_sum(h, w):
            sums = cross_entropy(config)(GivenStates(h, w, softcap), {}, batch, None)
            return sums.loss_sum, sums

        (_, sums), grads = jax.value_and_grad(loss_sum, argnums=(0, 1), has_aux=True)(h, w)
        return sums, grads

    inputs = jnp.asarray(h, jnp.float32), jnp.asarray(padded, jnp.float32)
    sums, (dh, dw) = both(*inputs, batch)
    expected, (dh_expected, dw_expected) = run(config, h, w, batch, softcap)
    np.testing.assert_allclose(sums.loss_sum, expected.loss_sum, rtol=1e-6)
    assert sums.metric_sums["accuracy"] == expected.metric_sums["accuracy"]
    np.testing.assert_allclose(dh, dh_expected, atol=1e-5)
    np.testing.assert_allclose(dw[:, :V], dw_expected, atol=1e-5)
    np.testing.assert_array_equal(dw[:, V:], 0)
    t = int(np.argmax(batch.loss_weights[0] != 0))
    batch.targets[0, t] = V  # a padding column is no token
    assert np.isnan(both(*inputs, batch)[0].loss_sum)


def test_gradient_scales_with_the_cotangent_and_metrics_carry_none():
    h, w, batch = draw()
    once = run(XentConfig(chunk_tokens=48), h, w, batch)[1]

    def scaled(h, w):
        sums = cross_entropy(XentConfig(chunk_tokens=48))(GivenStates(h, w), {}, batch, None)
        return 0.3 * sums.loss_sum + sum(total for total, _ in sums.metric_sums.values())

    grads = jax.jit(jax.grad(scaled, argnums=(0, 1)))(
        jnp.asarray(h, jnp.float32), jnp.asarray(w, jnp.float32)
    )
    for actual, expected in zip(grads, once, strict=True):
        assert max_error(actual, 0.3 * np.asarray(expected, np.float64)) < 1e-6


def test_bfloat16_gradients_have_its_dtype_and_are_near_the_reference():
    h, w, batch = draw()
    h, w = (np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (h, w))
    expected, expected_grads = reference(h, w, batch)
    sums, grads = run(XentConfig(chunk_tokens=48), h, w, batch, None, "bfloat16", jnp.bfloat16)
    assert sums.loss_sum.dtype == jnp.float32
    assert sums.loss_sum == pytest.approx(expected["nll"], rel=1e-5)  # float32 logits
    for actual, x in zip(grads, expected_grads, strict=True):
        assert actual.dtype == jnp.bfloat16
        assert max_error(actual, x) < 1e-2  # 8 bits of mantissa, twice


def test_evaluation_does_no_gradient_work_and_gives_the_same_sums():
    h, w, batch = draw()
    config = XentConfig(z_loss=0.01, chunk_tokens=48)
    sums, _ = run(config, h, w, batch)

    def evaluate(h, w):
        return cross_entropy(config)(GivenStates(h, w), {}, batch, None)

    arrays = (jnp.asarray(h, jnp.float32), jnp.asarray(w, jnp.float32))
    assert str(jax.make_jaxpr(evaluate)(*arrays)).count("dot_general[") == 1
    for x, y in zip(
        jax.tree.leaves(jax.jit(evaluate)(*arrays)), jax.tree.leaves(sums), strict=True
    ):
        assert x == pytest.approx(float(y), rel=1e-6)


def test_float32_logits_of_the_batch_never_exist():
    length, vocab = 512, 4096
    h, w = (
        jax.ShapeDtypeStruct((4, length, D), jnp.float32),
        jax.ShapeDtypeStruct((D, vocab), jnp.float32),
    )
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((4, length), x.dtype),
        make_batch(np.zeros((1, 1)), np.zeros((1, 1))),
    )
    lowered = sums_and_gradients.lower(
        XentConfig(chunk_tokens=128), None, "float32", None, h, w, batch
    )
    logits_bytes = 4 * length * vocab * 4
    assert lowered.compile().memory_analysis().temp_size_in_bytes < logits_bytes / 4


MESHES = {
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "tensor": MeshConfig(data=1, tensor=8),
    "mixed": MeshConfig(data=2, fsdp=2, tensor=2),
}


@pytest.fixture(scope="module", params=MESHES)
def on_mesh(request):
    """Compiled text, results on a mesh, and results on one device."""
    mesh = make_mesh(MESHES[request.param])
    h, w, batch = draw()
    config = XentConfig(z_loss=0.01, chunk_tokens=48)
    expected = run(config, h, w, batch, 2.0)
    config = dataclasses.replace(config, chunk_tokens=48 // batch_shards(mesh))  # the same chunks
    by_weight = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    by_state = NamedSharding(mesh, PartitionSpec(BATCH_AXES, "tensor"))
    h = jax.device_put(jnp.asarray(h, jnp.float32), by_state)
    w = jax.device_put(jnp.asarray(w, jnp.float32), by_weight)
    batch = jax.device_put(batch, batch_sharding(mesh))

    def pinned(h, w, batch):
        sums, (dh, dw) = sums_and_gradients(config, 2.0, "float32", Constrain(mesh), h, w, batch)
        dh, dw = jax.lax.with_sharding_constraint((dh, dw), (by_state, by_weight))
        return sums, (dh, dw)

    compiled = jax.jit(pinned).lower(h, w, batch).compile()
    return mesh, compiled.as_text(), compiled(h, w, batch), expected


def test_sums_and_gradients_on_a_mesh_equal_those_of_one_device(on_mesh):
    _, _, actual, expected = on_mesh
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert max_error(x, np.asarray(y)) < 1e-6


def test_head_is_gathered_once_and_its_gradient_reduced_once_outside_the_loop(on_mesh):
    mesh, text, _, _ = on_mesh
    local = f"f32[{D},{V // mesh.shape['tensor']}]"
    gathers, reductions = [], []
    for computation, line in instructions(text):
        result = line.split(" = ", 1)[-1]
        if re.search(r" all-gather\(", result) and local in result.split(" all-gather(")[0]:
            gathers.append(computation)
        match = re.search(r" (all-reduce|reduce-scatter)\(", result)
        if match and local in result.split(match[0])[0]:
            reductions.append(computation)
    assert gathers == ["ENTRY"] * (mesh.shape["fsdp"] > 1)
    assert reductions == ["ENTRY"] * (batch_shards(mesh) > 1)


def test_loop_communicates_only_where_the_vocabulary_is_split(on_mesh):
    mesh, text, _, _ = on_mesh
    collective = re.compile(
        r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\("
    )
    in_loop = [
        line for name, line in instructions(text) if name != "ENTRY" and collective.search(line)
    ]
    assert bool(in_loop) == (mesh.shape["tensor"] > 1)
    whole = f",{V}]"  # the logits of a chunk with the vocabulary in one piece
    assert not [line for line in in_loop if whole in line]


def instructions(text):
    """(computation, line) of each instruction of a compiled program."""
    computation = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            computation = "ENTRY" if line.startswith("ENTRY") else line.split(" ")[0]
        elif " = " in line:
            yield computation, line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"z_loss": -1.0}, r"^z_loss=-1.0 must be >= 0 and finite\.$"),
        ({"z_loss": float("inf")}, r"^z_loss=inf must be >= 0 and finite\.$"),
        ({"chunk_tokens": 0}, r"^chunk_tokens=0 must be >= 1\.$"),
    ],
)
def test_config_refuses_values_without_meaning(changes, message):
    with pytest.raises(ValueError, match=message):
        XentConfig(**changes)
