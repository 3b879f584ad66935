"""The updates of a real decoder, against the dense model and its gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import config_program
from jaxtrain.lora import adapters
from jaxtrain.lora.adapters import BASE, Target
from jaxtrain.lora.config import LoraConfig
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.models.parameters import flatten
from jaxtrain.optim.build import build
from jaxtrain.optim.config import OptimConfig
from jaxtrain.optim.groups import group_of
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.types import Batch
from tests.lora_runs import QUICK, quick_jit

MODEL = {
    "model.dropout": 0.0, "model.attention": "xla", "init.from": "somewhere", "init.load": "params",
}  # fmt: skip
LORA = {**MODEL, "lora.rank": 3, "lora.alpha": 6.0}
SCALE = 2.0


@pytest.fixture(scope="module")
def make_program(tiny_config):
    def make(overrides):
        config = tiny_config(overrides)
        mesh = make_mesh(MeshConfig(), jax.devices()[:1])
        return config_program.make_program(config, cross_entropy(config.loss), mesh)

    return make


@pytest.fixture(scope="module")
def batch():
    ids = np.random.default_rng(0).integers(3, 60, (4, 13)).astype(np.int32)
    positions = np.tile(np.arange(12, dtype=np.int32), (4, 1))
    ones = np.ones((4, 12), np.int32)
    return Batch(*map(jnp.asarray, (ids[:, :-1], ids[:, 1:], ones.astype(np.float32), positions,
                                    ones)))  # fmt: skip


@pytest.fixture(scope="module")
def adapted(make_program):
    """(program, params as they start, frozen)."""
    program = make_program(LORA)
    return program, program.init().params, program.init_frozen()


@functools.cache
def logits_of(program):
    """(params, frozen, batch) -> logits of a program's model."""
    bind = program.parametrize(program.model).bind
    return quick_jit(lambda p, f, batch: bind(p, {}, f)(batch.inputs, batch.positions))


@functools.cache
def loss_and_gradients(program):
    """(params, frozen, batch) -> summed loss of a program's model and its gradients."""
    bind = program.parametrize(program.model).bind

    def loss(params, frozen, batch):
        return program.loss(bind(params, {}, frozen), frozen, batch, None).loss_sum

    return quick_jit(jax.value_and_grad(loss))


@pytest.mark.parametrize(
    ("letters", "shape", "a", "b"),
    [
        ("LDNH", (2, 6, 3, 4), ("LDR", (2, 6, 5)), ("LRNH", (2, 5, 3, 4))),
        ("LNHD", (2, 3, 4, 6), ("LNHR", (2, 3, 4, 5)), ("LRD", (2, 5, 6))),
        ("LDF", (2, 6, 7), ("LDR", (2, 6, 5)), ("LRF", (2, 5, 7))),
        ("LEDF", (2, 8, 6, 7), ("LEDR", (2, 8, 6, 5)), ("LERF", (2, 8, 5, 7))),
        ("LRNH", (2, 9, 3, 4), ("LRR", (2, 9, 5)), ("LRNH", (2, 5, 3, 4))),
    ],
)
def test_a_matrix_of_any_kind_gets_two_factors_that_are_matrices(letters, shape, a, b):
    target = Target("path", letters)
    shapes = target.updates_shapes(shape, 5)
    assert list(zip(target.updates_letters, shapes, strict=True)) == [a, b]
    assert {group_of(each) for each in target.updates_letters} == {"matrix"}


def test_all_attention_and_feed_forward_matrices_are_adapted_by_default(adapted):
    program, params, _ = adapted
    matrices = {path for path, each in flatten(program.model.axes).items() if len(each) > 2
                and group_of(each) == "matrix"}  # fmt: skip
    assert {path.rpartition(".")[0] for path in flatten(params)} == matrices
    assert len(matrices) == 7


def test_neither_routers_nor_embeddings_nor_vectors_are_adapted():
    axes = {
        "blocks": {"ffn": {"router": {"w_DE": "LDE"}, "w_up_EDF": "LEDF", "b_up_EF": "LEF"}},
        "embedding_VD": "VD",
        "w_head_DV": "DV",
    }
    config = LoraConfig(rank=2, targets=("*",))
    assert [each.path for each in adapters.targets(config, axes)] == ["blocks.ffn.w_up_EDF"]
    dtypes = adapters.frozen_dtypes(LoraConfig(rank=2, base_dtype="bfloat16"), axes)
    assert {path for path, dtype in dtypes.items() if dtype == jnp.float32} == {
        "blocks.ffn.router.w_DE", "blocks.ffn.b_up_EF",
    }  # fmt: skip


def test_a_pattern_that_fits_nothing_lists_what_there_is(make_program):
    with pytest.raises(
        ValueError, match=r"targets: '\*\.q_proj' fits none of .* blocks\.attention\.w_k_DKH"
    ):
        make_program({**LORA, "lora.targets": "*.w_q_DNH,*.q_proj"})


def test_what_is_targeted_does_not_change_how_an_update_starts(make_program, adapted):
    one = make_program({**LORA, "lora.targets": "*.w_up_DF"}).init().params
    ((path_a, a), (path_b, b)) = flatten(one).items()
    np.testing.assert_array_equal(a, flatten(adapted[1])[path_a])
    assert (path_b, np.abs(b).max()) == ("blocks.ffn.w_up_DF.b", 0)
    assert 0.9 / np.sqrt(32) < np.abs(a).max() <= 1 / np.sqrt(32)  # uniform within ±1/√inputs
    assert np.abs(a[0] - a[1]).max() > 0.1  # each layer its own


def test_first_loss_and_logits_are_the_bases_bit_for_bit(make_program, adapted, batch):
    program, params, frozen = adapted
    trees = {program: (params, frozen), make_program(MODEL): (frozen[BASE], {})}
    ours, theirs = (logits_of(each)(*given, batch) for each, given in trees.items())
    np.testing.assert_array_equal(ours, theirs)
    assert np.std(ours) > 0.1
    losses = [loss_and_gradients(each)(*given, batch)[0] for each, given in trees.items()]
    assert losses[0] == losses[1]


def test_gradients_are_those_of_the_dense_weights_through_the_product(make_program, adapted, batch):
    """dA = s·dW·Bᵀ and dB = s·Aᵀ·dW, where dW is the dense gradient at W + s·A·B."""
    program, params, frozen = adapted
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda x: jnp.asarray(0.2 * rng.standard_normal(x.shape), "float32"), params
    )
    found = flatten(loss_and_gradients(program)(params, frozen, batch)[1])
    base, updates = flatten(frozen[BASE]), flatten(params)
    products = {
        "w_q_DNH": "ldr,lrnh->ldnh", "w_k_DKH": "ldr,lrkh->ldkh", "w_v_DKH": "ldr,lrkh->ldkh",
        "w_o_NHD": "lnhr,lrd->lnhd", "w_gate_DF": "ldr,lrf->ldf", "w_up_DF": "ldr,lrf->ldf",
        "w_down_FD": "lfr,lrd->lfd",
    }  # fmt: skip
    merged = dict(base)
    for target in adapters.targets(LoraConfig(rank=3), program.model.axes):
        a, b = (np.asarray(updates[path], np.float64) for path in target.paths)
        product = SCALE * np.einsum(products[target.path.split(".")[-1]], a, b)
        merged[target.path] = jnp.asarray(product + np.asarray(base[target.path]), jnp.float32)
    _, grads = loss_and_gradients(make_program(MODEL))(adapters.nest(merged), {}, batch)
    grads = flatten(grads)
    for path, dense in grads.items():
        name = path.split(".")[-1]
        if name not in products:
            continue
        a, b, dense = (np.asarray(x, np.float64) for x in (
            updates[f"{path}.a"], updates[f"{path}.b"], dense))  # fmt: skip
        of_a, of_b, of_w = products[name].replace("->", ",").split(",")
        expected = {
            "a": SCALE * np.einsum(f"{of_w},{of_b}->{of_a}", dense, b),
            "b": SCALE * np.einsum(f"{of_w},{of_a}->{of_b}", dense, a),
        }
        for which, want in expected.items():
            got = found[f"{path}.{which}"]
            assert np.abs(want).max() > 1e-3, path
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_a_base_in_bfloat16_is_that_of_the_rounded_weights(make_program, adapted, batch):
    program = make_program({**LORA, "lora.base_dtype": "bfloat16"})
    _, params, frozen = adapted
    base = flatten(frozen[BASE])
    rounded = {
        path: leaf.astype(jnp.bfloat16) if leaf.ndim > 2 or path.endswith(("VD", "DV")) else leaf
        for path, leaf in base.items()
    }
    held = flatten(program.init_frozen()[BASE])
    assert {path: leaf.dtype for path, leaf in held.items()} == {
        path: leaf.dtype for path, leaf in rounded.items()
    }
    wide = adapters.nest({path: leaf.astype(jnp.float32) for path, leaf in rounded.items()})
    losses = [
        loss_and_gradients(each)(params, {BASE: tree}, batch)[0]
        for each, tree in ((program, adapters.nest(rounded)), (adapted[0], wide))
    ]
    assert losses[0] == losses[1]


def test_muon_and_weight_decay_apply_to_both_factors():
    """Both are matrices: orthogonalised for each layer; a factor without a gradient stays."""
    axes = dict(zip("ab", Target("w", "LDF").updates_letters, strict=True))
    rng = np.random.default_rng(0)
    params, grads = (
        {name: jnp.asarray(rng.standard_normal(shape), "float32") for name, shape in shapes.items()}
        for shapes in [{"a": (2, 32, 3), "b": (2, 3, 64)}] * 2
    )
    config = OptimConfig(name="muon", lr=0.1, schedule="constant", clip_norm=None, weight_decay=0.0)
    transform = build(config, 4, axes, 8).transform
    grads["a"] *= 0
    updates, _ = jax.jit(transform.update)(grads, transform.init(params), params)
    # Newton–Schulz leaves singular values within 0.68 to 1.2, times rate · 0.2 · √(longer side).
    singular = np.linalg.svd(updates["b"], compute_uv=False) / (0.1 * 0.2 * np.sqrt(64))
    assert 0.65 < singular.min() <= singular.max() < 1.25
    assert np.abs(updates["a"]).max() == 0
    decayed = OptimConfig(lr=0.1, schedule="constant", weight_decay=0.5)
    transform = build(decayed, 4, axes, 8).transform
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = transform.update(zeros, transform.init(params), params)
    jax.tree.map(lambda u, p: np.testing.assert_allclose(u, -0.05 * p, rtol=1e-6), updates, params)


def test_a_step_needs_far_less_memory_than_full_gradients(make_program):
    """As XLA plans it: the full step holds gradients of all weights, this one of the updates."""
    sizes = {
        "model.num_layers": 8, "model.d_model": 256, "model.d_ff": 1024, "model.scan_unroll": 1,
        "model.remat": "full",
    }  # fmt: skip
    shape = (2, 32)
    ids, floats = (jax.ShapeDtypeStruct(shape, dtype) for dtype in ("int32", "float32"))
    temporary = []
    for overrides in (MODEL, LORA):
        program = make_program({**overrides, **sizes})
        compiled = program.lower(Batch(ids, ids, floats, ids, ids)).compile(QUICK)
        temporary.append(compiled.memory_analysis().temp_size_in_bytes)
    weights = 4 * sum(leaf.size for leaf in jax.tree.leaves(program.model.params))
    assert temporary[0] > weights
    assert temporary[1] < 0.5 * weights
    assert temporary[1] < temporary[0] / 4


def test_report_counts_what_is_trained_and_what_is_frozen(adapted):
    program, params, _ = adapted
    num_trained = 2 * 3 * (2 * 32 + 2 * 32 + 32 + 16 + 32 + 16 + 3 * (32 + 64))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == num_trained
    text = adapters.describe(LoraConfig(rank=3), program.model, params)
    assert text.startswith(f"rank 3, alpha 16 on 7 arrays of matrices: {num_trained:,} parameters")
