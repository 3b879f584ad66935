"""Ways to the experts against the dense one, which test_moe.py holds against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expert_layer import parts
from filled import quick

from jaxtrain import measured
from jaxtrain.kernels import blocks, grouped_matmul
from jaxtrain.models import dispatch
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.parameters import flatten, nest, read_measured
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import TABLES, batch_sharding, named_shardings

CONFIG = ModelConfig(
    vocab_size=64, num_layers=2, d_model=16, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=12,
    num_experts=8, num_experts_per_token=2, router_selection_bias=True,
)  # fmt: skip
GPT_OSS = {"router_bias": True, "ffn_bias": True, "activation": "clamped_swiglu"}
X = np.random.default_rng(0).standard_normal((8, 6, 16)).astype(np.float32)
IS_TOKEN = np.arange(6)[None] < np.array([[6], [5], [4], [3], [6], [6], [0], [6]])
TARGET = np.random.default_rng(1).standard_normal((8, 6, 16)).astype(np.float32)
ALL_TO_ONE = {"router.selection_bias_E": np.array([0, 0, 0, 9, 9, 0, 0, 0], np.float32)}


def outputs_and_grads(config, mesh_shape=None, changed=()):
    """(outputs of tokens, dropped, gradients by dotted path) of one training pass."""
    mesh = None if mesh_shape is None else make_mesh(MeshConfig(**mesh_shape))
    made, params = parts(config, mesh)
    params = flatten(params) | {path: jnp.asarray(value) for path, value in changed}
    inputs = (X, IS_TOKEN, TARGET)
    if mesh:
        where = flatten(named_shardings(made.axes, TABLES["zero3"].params, mesh))
        params = {path: jax.device_put(leaf, where[path]) for path, leaf in params.items()}
        inputs = jax.device_put(inputs, batch_sharding(mesh))

    def loss(params, x, is_token, target):
        model = made.bind(nest(params), {}, measured.zeros(made.measured))
        out = jnp.where(is_token[..., None], model(x, is_token), 0)
        return jnp.sum(out * target), (out, read_measured(model))

    run = quick(jax.grad(loss, (0, 1), has_aux=True))
    grads, (out, found) = jax.device_get(run(params, *inputs))
    return out, float(found["dropped"]), {**grads[0], "x": grads[1]}


def assert_same(got, want):
    for name, expected in want[2].items():
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(got[2][name], expected, atol=1e-5 * scale, err_msg=name)
    np.testing.assert_allclose(got[0], want[0], atol=1e-5 * np.abs(want[0]).max())


CASES = {
    "mixtral": ({}, ()),
    "gpt-oss": (GPT_OSS, ()),
    "all experts": ({"num_experts_per_token": 8}, ()),
    "all tokens to the same, the others empty": ({}, tuple(ALL_TO_ONE.items())),
}


@pytest.mark.parametrize("kind", ["dropless", "capacity"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_the_dense_way(case, kind):
    changes, changed = CASES[case]
    config = dataclasses.replace(CONFIG, **changes)
    other = dataclasses.replace(config, expert_dispatch=kind, expert_capacity_factor=4.0)
    got = outputs_and_grads(other, changed=changed)
    assert got[1] == 0
    assert_same(got, outputs_and_grads(config, changed=changed))


MESHES = [
    {"data": 1, "expert": 8},
    {"data": 2, "expert": 2, "tensor": 2},
    {"data": 1, "fsdp": 2, "expert": 4},
]


@pytest.mark.parametrize("shape", MESHES, ids=str)
@pytest.mark.parametrize("kind", ["dropless", "capacity"])
def test_outputs_drops_and_gradients_are_the_same_on_every_mesh(shape, kind):
    changes = {**GPT_OSS, "expert_dispatch": kind, "expert_capacity_factor": 0.75}
    config = dataclasses.replace(CONFIG, **changes)
    alone, spread = outputs_and_grads(config), outputs_and_grads(config, shape)
    assert spread[1] == alone[1]
    assert (alone[1] > 0) == (kind == "capacity")
    assert_same(spread, alone)


def test_dropless_drops_nothing_where_one_device_has_all_that_is_wanted():
    config = dataclasses.replace(CONFIG, expert_dispatch="dropless")
    changed = tuple(ALL_TO_ONE.items())  # experts 3 and 4, on two of the devices
    got = outputs_and_grads(config, {"data": 1, "expert": 8}, changed)
    assert_same(got, outputs_and_grads(CONFIG, changed=changed))


def test_what_an_expert_has_no_place_for_is_dropped_last_choices_and_positions_first():
    config = dataclasses.replace(
        CONFIG, expert_dispatch="capacity", expert_capacity_factor=1.0
    )  # 2 places an expert in rows of 6
    made, params = parts(config)
    routing = quick(made.bind(params, {}).router)(X)
    out, num_dropped, _ = outputs_and_grads(config)
    dense = dataclasses.replace(config, expert_dispatch="dense")
    one_by_one = parts(dense)[0].bind(params, {})
    expected, dropped = np.zeros_like(X), 0
    for row in range(8):
        taken = np.zeros(8, int)
        kept = np.zeros((6, 8), np.float32)
        for chosen in range(2):
            for t in np.flatnonzero(IS_TOKEN[row]):
                expert = int(routing.expert[row, t, chosen])
                if taken[expert] < 2:
                    kept[t, expert] = routing.weight[row, t, chosen]
                else:
                    dropped += 1
                taken[expert] += 1
        expected[row] = np.asarray(
            one_by_one._dense(jnp.asarray(X[row : row + 1]), jnp.asarray(kept[None]))
        )[0]
    assert num_dropped == dropped > 0
    np.testing.assert_allclose(out, expected, atol=1e-5 * np.abs(expected).max())


def test_nothing_is_dropped_outside_of_training():
    config = dataclasses.replace(CONFIG, expert_dispatch="capacity", expert_capacity_factor=0.1)
    dense = dataclasses.replace(CONFIG, expert_dispatch="dense")
    params = parts(config)[1]
    got, want = (quick(parts(each)[0].bind(params, {}))(X) for each in (config, dense))
    np.testing.assert_array_equal(got, want)


def test_metrics_tell_the_dropped_fraction():
    config = dataclasses.replace(CONFIG, expert_dispatch="capacity")
    made, params = parts(config)
    found = measured.zeros(made.measured)
    found = {**found, "dropped": jnp.float32(3), "router": {**found["router"],
             "load_E": jnp.full(8, 1.5)}}  # fmt: skip
    assert made.bind(params, {}, found).metrics() == {"moe/dropped_frac": 0.25}


@pytest.mark.parametrize(
    ("factor", "length", "expected"), [(1.25, 128, 40), (1.0, 6, 2), (100.0, 6, 6), (0.01, 6, 1)]
)
def test_capacity_is_the_factor_of_an_even_load(factor, length, expected):
    config = dataclasses.replace(CONFIG, expert_capacity_factor=factor)
    assert dispatch.capacity(config, length) == expected


def test_dropless_is_refused_where_it_would_run_as_something_else():
    config = dataclasses.replace(CONFIG, expert_dispatch="dropless")
    assert dispatch.choice(config, "cpu")[0] == "dropless"
    assert "our own grouped matmul kernel" in dispatch.choice(config, "gpu")[1]
    with pytest.raises(ValueError, match=r"expert_dispatch='dropless' has no kernel on tpu"):
        dispatch.choice(config, "tpu")


@pytest.mark.parametrize("shape", [None, {"data": 2, "expert": 2, "tensor": 2}], ids=str)
def test_our_kernel_computes_what_the_dense_way_does(shape, monkeypatch):
    """As on a GPU, interpreted."""
    sizes = blocks.GROUPED_MATMUL["hopper"]
    interpreted = grouped_matmul.Spec(sizes, has_fp8=True, interpret=True)
    monkeypatch.setattr(dispatch, "_kernel", lambda mesh: interpreted)
    config = dataclasses.replace(CONFIG, **GPT_OSS)
    dropless = dataclasses.replace(config, expert_dispatch="dropless")
    assert_same(outputs_and_grads(dropless, shape), outputs_and_grads(config))


def test_rows_that_do_not_divide_are_refused():
    config = dataclasses.replace(CONFIG, expert_dispatch="dropless")
    mesh = make_mesh(MeshConfig(data=1, expert=8))
    made, params = parts(config, mesh)
    with pytest.raises(ValueError, match=r"4 rows must be a multiple of the 8 parts"):
        jax.eval_shape(made.bind(params, {}), X[:4])
