"""Routed experts in FP8 and in tiles, against NumPy in float64 of what ml_dtypes has rounded.

Activations are float32, so that all roundings are those of the operands.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from expert_layer import parts
from filled import quick

from jaxtrain.kernels import blocks, grouped_matmul
from jaxtrain.models import dispatch, moe
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.parameters import flatten, nest
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import TABLES, batch_sharding, named_shardings
from jaxtrain.precision.quantization import TENSORS, Quantization
from jaxtrain.precision.quantized_weight import QuantizedWeight

CONFIG = ModelConfig(
    vocab_size=64, num_layers=2, d_model=16, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=12,
    num_experts=8, num_experts_per_token=2, expert_capacity_factor=4.0,
)  # fmt: skip
NAMES = ("w_gate_EDF", "w_up_EDF", "w_down_EFD")
X = np.random.default_rng(0).standard_normal((8, 6, 16)).astype(np.float32)
D_OUT = 1e-3 * np.random.default_rng(1).standard_normal((8, 6, 16)).astype(np.float32)
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
CUBE, EXPERTS = MeshConfig(data=2, expert=2, tensor=2), MeshConfig(data=1, fsdp=2, expert=4)
DISPATCHES = ("dense", "capacity", "dropless")
#: Delayed scales of inputs, weights and gradients; the first saturates.
HISTORY = np.array([[1.0, 0.5], [2.0, 0.1], [1e-2, 1e-3]], np.float32)


@functools.cache
def layer_pass(kind, how, shape=None, quantised=NAMES, seed=None, alike=False):
    """(output, gradients by dotted path, what each probe has seen) of a layer whose experts are so.

    Nothing is dropped: an expert has room for four times an even load. With `alike` every row is
    the first.
    """
    config = dataclasses.replace(CONFIG, expert_dispatch=kind)
    mesh = None if shape is None else make_mesh(shape)
    made, params = parts(config, mesh)
    rows = np.zeros(8, int) if alike else np.arange(8)
    params, inputs = flatten(params), (X[rows], D_OUT[rows])
    if mesh:
        where = flatten(named_shardings(made.axes, TABLES["zero3"].params, mesh))
        params = {path: jax.device_put(leaf, where[path]) for path, leaf in params.items()}
        inputs = jax.device_put(inputs, batch_sharding(mesh))

    def loss(params, probes, x, d_out):
        model = made.bind(nest(params), {}, {"dropped": jnp.float32(0), "router": {}})
        for name in quantised:
            is_delayed = how.scaling == "delayed"
            measure = (jnp.asarray(HISTORY), probes[name]) if is_delayed else (None, None)
            rng = None if seed is None else jax.random.key(seed)
            weight = QuantizedWeight(params[name], *measure, how, f"ffn.{name}", rng)
            getattr(model, name).set_value(weight)
        out = model(x)
        return jnp.sum(out * d_out), out

    probes = {name: jnp.zeros(3) for name in NAMES}
    run = quick(jax.grad(loss, (0, 1, 2), has_aux=True))
    grads, out = jax.device_get(run(params, probes, *inputs))
    return out, {**grads[0], "x": grads[2]}, grads[1]


def rounded(x, dtype, amax):
    """x as FP8 values under a power-of-two scale stand for it, in float64."""
    limit = float(ml_dtypes.finfo(dtype).max)
    scale = 2.0 ** np.ceil(np.log2(amax / limit))
    values = np.clip(x / scale, -limit, limit).astype(np.float32).astype(dtype)
    return values.astype(np.float64) * scale


class Reference:
    """The same in NumPy, with all tokens at all experts; `seen` are largest magnitudes."""

    def __init__(self, scaling, quantised):
        self.scaling, self.quantised = scaling, quantised
        self.seen = {name: np.zeros(3) for name in NAMES}
        made, params = parts(CONFIG)
        self.params = {path: np.asarray(w, np.float64) for path, w in flatten(params).items()}
        routing = quick(made.bind(params, {}).router)(X)
        self.weights = np.asarray(moe.weights_by_expert(routing), np.float64)[..., None]
        self.is_chosen = self.weights > 0

    def cast(self, x, dtype, name, tensor):
        if name not in self.quantised:
            return x
        index = TENSORS.index(tensor)
        self.seen[name][index] = amax = np.abs(x).max()
        return rounded(x, dtype, HISTORY[index].max() if self.scaling == "delayed" else amax)

    def run(self):
        x, w = X.astype(np.float64), {name: self.params[name] for name in NAMES}
        q_x = [self.cast(x, E4M3, name, "input") for name in NAMES[:2]]
        q_w = {name: self.cast(w[name], E4M3, name, "weight") for name in NAMES}
        gate, up = (
            np.einsum("btd,edf->btef", q, q_w[n]) for q, n in zip(q_x, NAMES[:2], strict=True)
        )
        silu = gate / (1 + np.exp(-gate))
        hidden = silu * up * self.is_chosen
        q_hidden = self.cast(hidden, E4M3, "w_down_EFD", "input")
        out = np.einsum("btef,efd->bted", q_hidden, q_w["w_down_EFD"]) * self.weights
        d_each = D_OUT[:, :, None].astype(np.float64) * self.weights
        q_d = self.cast(d_each, E5M2, "w_down_EFD", "gradient")
        d_hidden = np.einsum("bted,efd->btef", q_d, q_w["w_down_EFD"])
        slope = (silu + (1 - silu) / (1 + np.exp(-gate))) * up
        d_gate, d_up = d_hidden * slope * self.is_chosen, d_hidden * silu * self.is_chosen
        q_up = self.cast(d_up, E5M2, "w_up_EDF", "gradient")
        q_gate = self.cast(d_gate, E5M2, "w_gate_EDF", "gradient")
        return out.sum(axis=2), {
            "w_down_EFD": np.einsum("btef,bted->efd", q_hidden, q_d),
            "w_up_EDF": np.einsum("btd,btef->edf", q_x[1], q_up),
            "w_gate_EDF": np.einsum("btd,btef->edf", q_x[0], q_gate),
        }


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize(
    ("kind", "scaling", "quantised"),
    [
        ("capacity", "current", NAMES),
        ("capacity", "delayed", ("w_up_EDF",)),  # gate and down are excluded
        ("dropless", "current", ("w_gate_EDF", "w_down_EFD")),
        ("dropless", "delayed", NAMES),
    ],
)
def test_experts_in_fp8_are_numpys_with_the_same_operands(kind, scaling, quantised):
    reference = Reference(scaling, quantised)
    expected, expected_grads = reference.run()
    out, grads, seen = layer_pass(kind, Quantization(scaling), quantised=quantised)
    # float32 against float64; a value at a rounding edge would be 2^-4 of itself away.
    assert distance(out, expected) < 1e-5
    for name in NAMES:
        assert distance(grads[name], expected_grads[name]) < 1e-4
        if scaling == "delayed":
            np.testing.assert_allclose(seen[name], reference.seen[name], rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shape", "scaling"),
    [
        ("dense", CUBE, "delayed"),
        ("capacity", CUBE, "current"),
        ("capacity", EXPERTS, "delayed"),
        ("dropless", EXPERTS, "current"),
        ("dropless", CUBE, "delayed"),
    ],
    ids=["dense", "capacity", "capacity, all by experts", "dropless, all by experts", "dropless"],
)
def test_experts_in_fp8_are_the_same_on_every_mesh(kind, shape, scaling):
    """Also what is seen of every tensor, which is split over experts, width and rows."""
    alone, spread = (layer_pass(kind, Quantization(scaling), each) for each in (None, shape))
    # Sums in another order may round to the next number of E5M2, 2^-2 away, in a few elements.
    assert distance(spread[0], alone[0]) < 1e-5
    for name, expected in alone[1].items():
        assert distance(spread[1][name], expected) < 2e-2, name
        assert np.median(np.abs(spread[1][name] - expected)) < 1e-6 * np.abs(expected).max(), name
    for name in NAMES if scaling == "delayed" else ():
        np.testing.assert_allclose(spread[2][name], alone[2][name], rtol=1e-5)


def test_stochastic_rounding_is_of_gradients_alone_with_draws_for_each_device():
    how = Quantization()
    nearest, *drawn = (layer_pass("dropless", how, EXPERTS, seed=seed) for seed in (None, 0, 1))
    for out, grads, _ in drawn:
        np.testing.assert_array_equal(out, nearest[0])
        for name in NAMES:  # each rounds by a step at most, where nearest rounds by a half
            assert 0.01 < distance(grads[name], nearest[1][name]) < 0.3
    assert distance(drawn[0][1]["w_up_EDF"], drawn[1][1]["w_up_EDF"]) > 0.01
    # Experts are on four devices, twice: each half of the rows finds its own.
    halves = np.split(layer_pass("dropless", how, EXPERTS, seed=0, alike=True)[1]["x"], 2)
    assert distance(halves[0], halves[1]) > 0.01
    halves = np.split(layer_pass("dropless", how, EXPERTS, alike=True)[1]["x"], 2)
    np.testing.assert_array_equal(halves[0], halves[1])


@pytest.mark.parametrize("kind", DISPATCHES)
def test_error_of_fp8_is_that_of_its_mantissas(kind):
    """E4M3 rounds by 2.6 % (rms), E5M2 by 5 %: in quadrature over the casts that a result sees."""
    out, grads, _ = layer_pass(kind, Quantization())
    exact, exact_grads, _ = layer_pass(kind, Quantization(), quantised=())
    assert 0.03 < distance(out, exact) < 0.1
    for name in (*NAMES, "x"):
        assert 0.03 < distance(grads[name], exact_grads[name]) < 0.15


@pytest.mark.parametrize("scaling", ["fp8_block", "nvfp4"])
def test_capacity_cuts_each_expert_into_tiles_as_the_dense_way_does(scaling):
    """All have a scale for each row's terms here, which are fewer than a tile's."""
    how = Quantization(scaling, emulate=True)
    dense, capacity = (layer_pass(kind, how) for kind in ("dense", "capacity"))
    exact = layer_pass("dense", how, quantised=())
    error = 0.35 if scaling == "nvfp4" else 0.12
    for kind in (dense, capacity):
        assert 0.005 < distance(kind[0], exact[0]) < error
        for name in NAMES:
            assert 0.005 < distance(kind[1][name], exact[1][name]) < error


def test_our_kernel_multiplies_the_same_fp8_numbers(monkeypatch):
    """As on a GPU, interpreted."""
    expected = layer_pass("dropless", Quantization())
    kernel = grouped_matmul.Spec(blocks.GROUPED_MATMUL["hopper"], has_fp8=True, interpret=True)
    monkeypatch.setattr(dispatch, "_kernel", lambda mesh: kernel)
    got = layer_pass.__wrapped__("dropless", Quantization())
    assert distance(got[0], expected[0]) < 1e-5
    for name, want in expected[1].items():
        assert distance(got[1][name], want) < 2e-2, name
