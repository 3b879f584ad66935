"""The distillation loss against float64, through heads, soft caps, chunks, padding and meshes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.losses.distill import DistillConfig, distill
from jaxtrain.losses.divergence import DIVERGENCES
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.parallel.mesh import BATCH_AXES, MeshConfig, batch_shards, make_mesh
from jaxtrain.parallel.sharding import Constrain, batch_sharding
from jaxtrain.types import Batch
from tests.lora_runs import quick_jit
from tests.losses.distilling import (
    TEACHER_D,
    B,
    D,
    T,
    V,
    draw,
    make_batch,
    make_sums_and_gradients,
    max_error,
    reference,
    run,
    sums_and_gradients,
)
from tests.losses.given_states import GivenStates, unconstrained

CONFIGS = [
    *(DistillConfig(divergence=kind, temperature=2.0, chunk_tokens=40) for kind in DIVERGENCES),
    *(DistillConfig(divergence=kind, top_k=3, temperature=2.0) for kind in DIVERGENCES),
    DistillConfig(divergence="reverse_kl", top_k=3, rest="renormalized", alpha=1.0),
    DistillConfig(divergence="jensen_shannon", beta=0.1, temperature=0.5, alpha=0.3),
    DistillConfig(top_k=1, chunk_tokens=1),
    DistillConfig(top_k=V, rest="renormalized", chunk_tokens=24),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_sums_and_gradients_equal_float64_reference(config):
    student, teacher, batch = draw()
    expected_loss, expected, expected_grads = reference(config, student, teacher, batch)
    sums, grads = run(config, student, teacher, batch)
    assert sums.weight_sum == batch.loss_weights.sum()
    assert sums.loss_sum == pytest.approx(expected_loss, rel=2e-6)
    if config.divergence == "forward_kl":
        del expected["divergence"]
    assert set(sums.metric_sums) == set(expected)
    for name, (total, count) in sums.metric_sums.items():
        assert count == sums.weight_sum
        assert total == pytest.approx(expected[name], rel=5e-6), name
    for actual, x in zip(grads, expected_grads, strict=True):
        assert max_error(actual, x) < 2e-6


def test_soft_caps_of_either_model_are_its_own():
    softcaps = (2.0, 1.5)
    student, teacher, batch = draw()
    config = DistillConfig(temperature=2.0, divergence="reverse_kl", chunk_tokens=40)
    expected_loss, _, expected_grads = reference(config, student, teacher, batch, softcaps)
    sums, grads = run(config, student, teacher, batch, softcaps=softcaps)
    assert sums.loss_sum == pytest.approx(expected_loss, rel=2e-6)
    for actual, x in zip(grads, expected_grads, strict=True):
        assert max_error(actual, x) < 2e-6


# --- one place, given probabilities ---

TEACHER, STUDENT = [0.6, 0.2, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1]


def at_one_place(config, batch=None):
    """(loss, gradient of the student's logits) of those two distributions."""
    one = np.ones((1, 1, 1))
    given = [(one, np.log([each])) for each in (STUDENT, TEACHER)]
    batch = batch or make_batch(np.zeros((1, 1)), np.ones((1, 1)))
    sums, (_, dlogits) = run(config, *given, batch)
    return float(sums.loss_sum), np.asarray(dlogits[0], np.float64)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (DistillConfig(alpha=1.0, temperature=2.0), 0.095008),  # τ² = 4 times 0.023752
        (DistillConfig(alpha=1.0, top_k=2), 0.081093),
        (DistillConfig(alpha=1.0, top_k=2, rest="renormalized"), 0.069201),
        (DistillConfig(alpha=1.0, top_k=4), 0.092872),
        (DistillConfig(alpha=1.0, top_k=4, rest="renormalized"), 0.092872),
        (DistillConfig(alpha=1.0), 0.092872),
    ],
)
def test_loss_is_what_was_worked_out_by_hand(config, expected):
    assert at_one_place(config)[0] == pytest.approx(expected, abs=2e-6)


def test_the_square_of_the_temperature_keeps_the_size_of_the_gradient():
    once, twice = (at_one_place(DistillConfig(alpha=1.0, temperature=t)) for t in (1.0, 2.0))
    ratio = np.linalg.norm(twice[1]) / np.linalg.norm(once[1])
    assert abs(ratio - 1) < 0.15


def test_the_metric_kl_has_neither_share_nor_square_in_it():
    one = np.ones((1, 1, 1))
    given = [(one, np.log([each])) for each in (STUDENT, TEACHER)]
    batch = make_batch(np.zeros((1, 1)), np.full((1, 1), 3.0))
    sums, _ = run(DistillConfig(alpha=0.4, temperature=2.0), *given, batch)
    total, count = sums.metric_sums["kl"]
    assert total / count == pytest.approx(0.023752, abs=1e-6)


# --- what it must not depend on ---


@pytest.mark.parametrize("top_k", [None, 3])
def test_only_shared_ids_count_however_the_vocabularies_are_padded(top_k):
    """Student and teacher have 3 and 9 columns more, of weights that would dominate."""
    student, teacher, batch = draw()
    config = DistillConfig(divergence="reverse_kl", alpha=1.0, top_k=top_k, chunk_tokens=40)
    expected, (dh_expected, dw_expected) = run(config, student, teacher, batch)
    wide = [
        (h, np.concatenate([w, np.full((w.shape[0], more), 50.0)], 1))
        for (h, w), more in ((student, 3), (teacher, 9))
    ]
    sums, (dh, dw) = run(config, *wide, batch, num_shared=V)
    assert sums.loss_sum == pytest.approx(float(expected.loss_sum), rel=1e-5)
    for name in ("kl", "agreement", "teacher_nll"):
        assert sums.metric_sums[name][0] == pytest.approx(
            float(expected.metric_sums[name][0]), rel=1e-5
        )
    np.testing.assert_allclose(dh, dh_expected, atol=1e-4)
    np.testing.assert_allclose(dw[:, :V], dw_expected, atol=1e-4)
    np.testing.assert_array_equal(dw[:, V:], 0)


def test_loss_is_the_sum_over_microbatches():
    student, teacher, batch = draw()
    config = DistillConfig(temperature=2.0, chunk_tokens=40)
    whole, _ = run(config, student, teacher, batch)
    parts = []
    for rows in (slice(0, B, 2), slice(1, B, 2)):
        some = [(h[rows], w) for h, w in (student, teacher)]
        parts.append(run(config, *some, Batch(*(x[rows] for x in batch)))[0])
    for x, y, z in zip(*map(jax.tree.leaves, (whole, *parts)), strict=True):
        assert x == pytest.approx(float(y + z), rel=1e-6)


@pytest.mark.parametrize("filler", [np.nan, np.inf])
def test_weight_zero_keeps_non_finite_states_out(filler):
    student, teacher, batch = draw()
    config = DistillConfig(divergence="jensen_shannon", top_k=3, hidden_weight=1.0, chunk_tokens=40)
    teacher = student[0] + 1, student[1] + teacher[1][:1]
    clean = run(config, student, teacher, batch)
    for h in (student[0], teacher[0]):
        h[batch.loss_weights == 0] = filler
    again = run(config, student, teacher, batch)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, clean))
    assert not np.asarray(again[1][0])[batch.loss_weights == 0].any()


def test_no_weight_at_all_gives_zero_loss_and_zero_gradients():
    student, teacher, batch = draw(weights=np.zeros((B, T)))
    found = run(DistillConfig(divergence="reverse_kl"), student, teacher, batch)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(found))


def test_gradient_scales_with_the_cotangent_and_metrics_and_teacher_carry_none():
    student, teacher, batch = draw()
    config = DistillConfig(chunk_tokens=40)
    _, once = run(config, student, teacher, batch)

    def scaled(student, teacher):
        models = [GivenStates(*given, vocab_size=V) for given in (student, teacher)]
        sums = distill(config)(models[0], {"teacher": models[1]}, batch, None)
        return 0.3 * sums.loss_sum + sum(total for total, _ in sums.metric_sums.values())

    given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (student, teacher))
    grads, teachers = quick_jit(jax.grad(scaled, argnums=(0, 1)))(*given)
    for actual, expected in zip(grads, once, strict=True):
        assert max_error(actual, 0.3 * np.asarray(expected, np.float64)) < 1e-6
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(teachers))


def test_with_a_small_share_it_nears_cross_entropy():
    student, teacher, batch = draw()
    sums, grads = run(DistillConfig(alpha=1e-6), student, teacher, batch)
    given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), student)

    def xent(student):
        model = GivenStates(*student, vocab_size=V)
        return cross_entropy(XentConfig())(model, {}, batch, None).loss_sum

    value, expected = quick_jit(jax.value_and_grad(xent))(given)
    assert sums.loss_sum == pytest.approx(float(value), rel=1e-5)
    for actual, x in zip(grads, expected, strict=True):
        assert max_error(actual, np.asarray(x)) < 1e-5


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_a_student_with_the_teachers_weights_has_no_divergence(kind):
    student, _, batch = draw()
    sums, _ = run(DistillConfig(divergence=kind, temperature=3.0), student, student, batch)
    assert abs(sums.metric_sums["kl"][0]) < 1e-6
    assert sums.metric_sums["agreement"][0] == sums.weight_sum


def test_only_the_student_is_given_dropout():
    student, teacher, batch = draw()
    key = jax.random.key(0)
    given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (student, teacher))
    models = [GivenStates(*each, vocab_size=V) for each in given]
    distill(DistillConfig())(models[0], {"teacher": models[1]}, batch, key)
    assert models[0].rng_seen == [key]
    assert models[1].rng_seen == [None]


# --- hidden states ---


@pytest.mark.parametrize("distance", ["mse", "cosine"])
def test_hidden_states_add_their_distance_and_its_gradient(distance):
    student, _, batch = draw()
    teacher = np.random.default_rng(5).normal(size=(B, T, D)), student[1]
    weights = batch.loss_weights.astype(np.float64)
    with_hidden = DistillConfig(hidden_weight=0.7, hidden_distance=distance)
    sums, (dh, _) = run(with_hidden, student, teacher, batch)
    plain, (dh_plain, _) = run(DistillConfig(), student, teacher, batch)
    x, y = student[0], teacher[0]
    if distance == "mse":
        each, slope = ((x - y) ** 2).mean(-1), 2 * (x - y) / D
    else:
        norm_x, norm_y = (np.linalg.norm(v, axis=-1, keepdims=True) for v in (x, y))
        cosine = (x * y).sum(-1, keepdims=True) / norm_x / norm_y
        each, slope = 1 - cosine[..., 0], -(y / norm_y - cosine * x / norm_x) / norm_x
    assert sums.metric_sums["hidden"][0] == pytest.approx((weights * each).sum(), rel=1e-5)
    assert sums.loss_sum == pytest.approx(
        float(plain.loss_sum) + 0.7 * (weights * each).sum(), rel=1e-5
    )
    np.testing.assert_allclose(dh - dh_plain, 0.7 * weights[..., None] * slope, atol=1e-5)


def test_hidden_states_of_two_widths_are_refused():
    student, teacher, batch = draw()
    message = (
        r"^config\.loss\.hidden_weight=1\.0 compares hidden states, but the student is 8 wide and "
        r"the teacher 5; set it to 0"
    )
    with pytest.raises(ValueError, match=message):
        run(DistillConfig(hidden_weight=1.0), student, teacher, batch)


# --- work and memory ---


def test_evaluation_does_no_gradient_work_and_gives_the_same_sums():
    student, teacher, batch = draw()
    config = DistillConfig(divergence="reverse_kl", chunk_tokens=40)
    sums, _ = run(config, student, teacher, batch)

    def evaluate(student, teacher):
        models = [GivenStates(*given, vocab_size=V) for given in (student, teacher)]
        return distill(config)(models[0], {"teacher": models[1]}, batch, None)

    given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (student, teacher))
    assert str(jax.make_jaxpr(evaluate)(*given)).count("dot_general[") == 2
    for x, y in zip(
        jax.tree.leaves(quick_jit(evaluate)(*given)), jax.tree.leaves(sums), strict=True
    ):
        assert x == pytest.approx(float(y), rel=1e-6)


@pytest.mark.parametrize("top_k", [None, 8])
def test_float32_logits_of_the_batch_never_exist_of_either_model(top_k):
    length, vocab = 512, 4096

    def floats(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    given = [(floats(4, length, d), floats(d, vocab)) for d in (D, TEACHER_D)]
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((4, length), x.dtype),
        make_batch(np.zeros((1, 1)), np.zeros((1, 1))),
    )
    config = DistillConfig(chunk_tokens=32, temperature=2.0, top_k=top_k)
    optimized = jax.jit(make_sums_and_gradients, static_argnums=(0, 1, 2, 3))
    compiled = optimized.lower(config, (None, None), unconstrained, None, *given, batch).compile()
    logits_bytes = 4 * length * vocab * 4
    assert compiled.memory_analysis().temp_size_in_bytes < logits_bytes / 4
    whole = (f"f32[4,{length},{vocab}]", f"f32[{4 * length},{vocab}]")
    assert not any(shape in compiled.as_text() for shape in whole)


MESHES = {
    "data": MeshConfig(data=8),
    "mixed": MeshConfig(data=2, fsdp=2, tensor=2),
}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("data", DistillConfig(temperature=2.0)),
        ("mixed", DistillConfig(temperature=2.0)),
        ("mixed", DistillConfig(top_k=3)),
    ],
    ids=str,
)
def test_sums_and_gradients_on_a_mesh_equal_those_of_one_device(name, config):
    mesh = make_mesh(MESHES[name])
    student, teacher, batch = draw()
    config = dataclasses.replace(config, chunk_tokens=48)
    expected = run(config, student, teacher, batch)
    config = dataclasses.replace(config, chunk_tokens=48 // batch_shards(mesh))  # the same chunks
    by_weight = NamedSharding(mesh, PartitionSpec(None, "tensor"))
    rows = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (student, teacher))
    given = jax.device_put(given, ((rows, by_weight), (rows, by_weight)))
    batch = jax.device_put(batch, batch_sharding(mesh))
    actual = sums_and_gradients(config, (None, None), Constrain(mesh), None, *given, batch)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert max_error(x, np.asarray(y)) < 2e-6


# --- what it is for ---


@pytest.mark.parametrize("kind", ["reverse_kl", "jensen_shannon"])
def test_a_student_reaches_its_teachers_distribution(kind):
    """A head of the student's own, on states of its own that can express all the teacher says."""
    rng = np.random.default_rng(0)
    states = jnp.eye(D).reshape(2, D // 2, D)
    teacher = rng.normal(size=(2, D // 2, TEACHER_D)), rng.normal(size=(TEACHER_D, V))
    teacher = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), teacher)
    batch = make_batch(rng.integers(0, V, (2, D // 2)), np.ones((2, D // 2)))
    loss = distill(DistillConfig(divergence=kind, alpha=1.0))
    teacher = GivenStates(*teacher, vocab_size=V)
    optimizer = optax.sgd(4.0, momentum=0.9)

    def step(carry, _):
        params, state = carry

        def mean(w):
            sums = loss(GivenStates(states, w, vocab_size=V), {"teacher": teacher}, batch, None)
            return sums.loss_sum / sums.weight_sum, sums.metric_sums["kl"][0] / sums.weight_sum

        (_, kl), grads = jax.value_and_grad(mean, has_aux=True)(params)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), kl

    start = jnp.zeros((D, V))
    carry = (start, optimizer.init(start))
    kls = quick_jit(lambda carry: jax.lax.scan(step, carry, None, length=600)[1])(carry)
    assert kls[0] > 0.5
    assert kls[-1] < 1e-3


@pytest.mark.reference
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_divergences_are_those_of_trls_gkd(beta):
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl", reason="the reference implementation is not installed")
    gkd = pytest.importorskip("trl.experimental.gkd.gkd_trainer").GKDTrainer
    student, teacher, batch = draw(weights=np.random.default_rng(2).integers(0, 2, (B, T)))
    tau = 2.0
    kind = {0.0: "forward_kl", 1.0: "reverse_kl"}.get(beta, "jensen_shannon")
    config = DistillConfig(
        divergence=kind, beta=beta if 0 < beta < 1 else 0.5, temperature=tau, alpha=1.0
    )
    sums, (dh, _) = run(config, student, teacher, batch)
    h = torch.tensor(student[0], requires_grad=True)
    logits = h @ torch.tensor(student[1])
    labels = torch.tensor(np.where(batch.loss_weights > 0, batch.targets, -100))
    theirs = torch.tensor(teacher[0] @ teacher[1])
    value = tau**2 * gkd.generalized_jsd_loss(
        logits, theirs, labels, beta=beta, temperature=tau, reduction="sum"
    )
    value.backward()
    assert sums.loss_sum == pytest.approx(value.item(), rel=1e-5)
    assert max_error(dh, h.grad.numpy()) < 1e-5


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"divergence": "js"}, r"^divergence=js must be one of forward_kl, reverse_kl, jensen_sh"),
        ({"beta": 1.0}, r"^beta=1\.0 must be above 0 and below 1; the limits are the two KLs\.$"),
        ({"temperature": 0.0}, r"^temperature=0\.0 must be above 0 and finite\.$"),
        ({"temperature": float("nan")}, r"^temperature=nan must be above 0"),
        ({"alpha": 0.0}, r"^alpha=0\.0 must be above 0 and at most 1; without a teacher: sft\.$"),
        ({"top_k": 0}, r"^top_k=0 must be at least 1, or None for all\.$"),
        ({"rest": "all"}, r"^rest=all must be one of tail, renormalized\.$"),
        ({"hidden_weight": -1.0}, r"^hidden_weight=-1\.0 must be >= 0 and finite\.$"),
        ({"hidden_distance": "l1"}, r"^hidden_distance=l1 must be one of mse, cosine\.$"),
        ({"chunk_tokens": 0}, r"^chunk_tokens=0 must be >= 1\.$"),
    ],
)
def test_config_refuses_values_without_meaning(changes, message):
    with pytest.raises(ValueError, match=message):
        DistillConfig(**changes)


@pytest.mark.parametrize(
    ("num_shared", "message"),
    [
        (None, r"^the student has 16 ids and the teacher 14; say how many their tokenizer has\.$"),
        (15, r"^student and teacher share 15 ids, but have 16 and 14\.$"),
        (0, r"^student and teacher share 0 ids"),
    ],
)
def test_vocabularies_of_two_sizes_need_to_be_told_what_they_share(num_shared, message):
    student, teacher, batch = draw()
    teacher = teacher[0], teacher[1][:, :14]
    student, teacher = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (student, teacher))
    models = [GivenStates(*given, vocab_size=n) for given, n in ((student, V), (teacher, 14))]
    with pytest.raises(ValueError, match=message):
        distill(DistillConfig(), num_shared)(models[0], {"teacher": models[1]}, batch, None)
