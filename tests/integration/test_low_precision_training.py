"""FP8 and float16 through the real step: what is remembered from update to update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import config_program
from jaxtrain.data.loader import Loader
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.precision.quantization import HISTORY_LEN, TENSORS
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints

DELAYED = {
    "precision.recipe": "fp8", "precision.scaling": "delayed", "precision.exclude": "()",
    "precision.emulate": "true", "model.dropout": 0.0,
}  # fmt: skip
HEAVY = 1  # the microbatch whose loss weights are 8 times the others'


@pytest.fixture(scope="module")
def config(tiny_config):
    return tiny_config(DELAYED)


def make_program(config, num_devices=1, **mesh):
    devices = make_mesh(MeshConfig(**mesh), jax.devices()[:num_devices])
    return config_program.make_program(config, cross_entropy(config.loss), devices)


@pytest.fixture(scope="module")
def whole(config):
    return make_program(config)


@pytest.fixture(scope="module")
def batch(config):
    rows = Loader(config.data, 0).batch(0)
    weights = rows.loss_weights * np.where(np.arange(8) % 4 == HEAVY, 8, 1)[:, None]
    return rows._replace(loss_weights=weights.astype(np.float32))


def step(program, state, batch):
    return program.train_step(state, {}, program.put(batch, len(batch.inputs)))


def history(state) -> np.ndarray:
    """[layer, weight, tensor, update]"""
    return np.asarray(state.nontrained["blocks"]["scaling"]["history"])


@pytest.fixture(scope="module")
def seen_alone(config, batch):
    """What each of four microbatches shows where it is the whole batch."""
    program = make_program(config)
    parts = [jax.tree.map(lambda x, j=j: x[j::4], batch) for j in range(4)]
    return np.stack([history(step(program, program.init(), part)[0])[..., 0] for part in parts])


@pytest.mark.slow
def test_history_takes_in_the_largest_of_all_microbatches_and_devices(
    tiny_config, batch, seen_alone
):
    """PRE-10: neither the last microbatch's nor one device's, and no sum of them."""
    config = tiny_config({**DELAYED, "loop.num_microbatches": 4})
    program = make_program(config, num_devices=4, data=2, tensor=2)
    state, metrics = step(program, program.init(), batch)
    found = history(state)
    assert found.shape == (2, 7, len(TENSORS), HISTORY_LEN)
    # Sums in another order round to the next bfloat16 number at times, and that now and then to the
    # next FP8 number, 2^-3 away, in the gradients that follow.
    expected = seen_alone.max(axis=0)
    gradient = TENSORS.index("gradient")
    np.testing.assert_allclose(found[..., :gradient, 0], expected[..., :gradient], rtol=2.0**-6)
    np.testing.assert_allclose(found[..., gradient, 0], expected[..., gradient], rtol=2.0**-3)
    assert not found[..., 1:].any()
    alone = seen_alone[..., gradient]
    assert (alone[HEAVY] > 2 * np.delete(alone, HEAVY, axis=0).max(axis=0)).all()
    assert metrics["skipped"] == 0


def test_weights_history_is_that_of_the_weights(whole, batch):
    state = whole.init()
    w_up = np.asarray(state.params["blocks"]["ffn"]["w_up_DF"])
    state, _ = step(whole, state, batch)
    found = history(state)[:, -1, TENSORS.index("weight"), 0]  # w_up_DF is the last by name
    np.testing.assert_allclose(found, np.abs(w_up).max((1, 2)), rtol=2.0**-8)


def test_recomputing_layers_in_a_loop_changes_no_history(whole, batch, tiny_config):
    """Full remat and a scan, which see each tensor twice, against layers one by one."""
    config = tiny_config({**DELAYED, "model.remat": "full", "model.scan_unroll": 1})
    again = make_program(config)
    expected, of_whole = step(whole, whole.init(), batch)
    found, of_again = step(again, again.init(), batch)
    assert float(of_again["loss"]) == pytest.approx(float(of_whole["loss"]), rel=1e-4)
    gradient = TENSORS.index("gradient")
    # A sum in another order may round to the next bfloat16 number, and that to another FP8 one.
    for part, rtol in ((slice(gradient), 2.0**-7), (gradient, 2.0**-3)):
        np.testing.assert_allclose(
            history(found)[..., part, 0], history(expected)[..., part, 0], rtol=rtol
        )
    assert history(found)[..., 0].all()


def test_resumed_run_continues_the_history_bit_for_bit(whole, config, tmp_path):
    loader, state = Loader(config.data, 0), whole.init()
    for index in range(2):
        state, _ = step(whole, state, loader.batch(index))
    with Checkpoints(tmp_path, CheckpointConfig(save_every=1)) as checkpoints:
        checkpoints.save(2, state, {})
        checkpoints.wait()
        restored = checkpoints.restore(2, whole.abstract_state)
    for index in range(2, 4):
        state, _ = step(whole, state, loader.batch(index))
        restored, _ = step(whole, restored, loader.batch(index))
    assert (history(state)[..., :4] > 0).all()
    assert not history(state)[..., 4:].any()
    for found, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_stochastic_rounding_repeats_with_seed_and_step_and_resumes_bit_for_bit(
    tiny_config, batch, tmp_path
):
    overrides = {
        "precision.recipe": "fp8", "precision.exclude": "()", "precision.emulate": "true",
        "precision.grad_rounding": "stochastic", "model.dropout": 0.0, "model.remat": "full",
        "model.scan_unroll": 1, "loop.num_microbatches": 2,
    }  # fmt: skip
    program = make_program(tiny_config(overrides))
    with Checkpoints(tmp_path, CheckpointConfig(save_every=1)) as checkpoints:
        checkpoints.save(0, program.init(), {})
        checkpoints.wait()
        restored = checkpoints.restore(0, program.abstract_state)
    expected, metrics = step(program, program.init(), batch)
    assert metrics["skipped"] == 0
    found, _ = step(program, restored, batch)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    # Another step draws other numbers, the weights being the same.
    later = program.init()._replace(step=jnp.int32(1), skipped=jnp.int32(1))
    _, others = step(program, jax.device_put(later, program.state_shardings), batch)
    assert others["loss"] == metrics["loss"]
    assert others["grad_norm"] != metrics["grad_norm"]


@pytest.mark.parametrize("where", ["weight", "scale"])
def test_step_with_a_value_that_is_not_finite_leaves_history_and_weights(whole, batch, where):
    state, _ = step(whole, whole.init(), batch)
    if where == "weight":
        w_up = state.params["blocks"]["ffn"]["w_up_DF"]
        state.params["blocks"]["ffn"]["w_up_DF"] = w_up.at[0, 0, 0].set(jnp.nan)
    else:
        scaling = state.nontrained["blocks"]["scaling"]
        scaling["history"] = scaling["history"].at[0, 0, 0, 1].set(jnp.nan)
    state = jax.device_put(state, whole.state_shardings)
    before = jax.device_get((state.params, state.opt_state, state.nontrained))
    state, metrics = step(whole, state, batch)
    assert metrics["skipped"] == 1
    after = jax.device_get((state.params, state.opt_state, state.nontrained))
    jax.tree.map(np.testing.assert_array_equal, before, after)


@pytest.fixture(scope="module")
def float16(tiny_config):
    return make_program(tiny_config({"precision.recipe": "float16", "model.dropout": 0.0}))


def test_overflow_halves_the_loss_scale_skips_one_update_and_changes_nothing_else(
    float16, batch, tmp_path
):
    state, _ = step(float16, float16.init(), batch)
    calm, _ = step(float16, jax.tree.map(jnp.copy, state), batch)
    assert calm.loss_scale.num_clean == 2
    # 2^20 times a gradient of the order of 1 is beyond float16's 65504, 2^19 as well.
    state = state._replace(loss_scale=state.loss_scale._replace(scale=jnp.float32(2**20)))
    state = jax.device_put(state, float16.state_shardings)
    before = jax.device_get(state)
    state, metrics = step(float16, state, batch)
    assert metrics["loss_scale"] == 2**20
    after = jax.device_get(state)
    changed = {"step", "skipped", "skipped_in_row", "tokens", "loss_scale"}
    for name in set(after._fields) - changed:
        jax.tree.map(np.testing.assert_array_equal, getattr(before, name), getattr(after, name))
    assert (after.step, after.skipped, after.skipped_in_row) == (2, 1, 1)
    assert (after.loss_scale.scale, after.loss_scale.num_clean) == (2**19, 0)

    # Where the scale fits again, the update is the one that an overflow never touched.
    with Checkpoints(tmp_path, CheckpointConfig(save_every=1)) as checkpoints:
        checkpoints.save(2, state, {})
        checkpoints.wait()
        restored = checkpoints.restore(2, float16.abstract_state)
    assert restored.loss_scale.scale == 2**19
    restored = restored._replace(loss_scale=before.loss_scale._replace(scale=np.float32(256)))
    restored = jax.device_put(restored, float16.state_shardings)
    state, metrics = step(float16, restored, batch)
    assert metrics["skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, state.params, calm.params)


def test_resumed_run_continues_the_loss_scale_bit_for_bit(float16, config, tmp_path):
    """Across an overflow, and with the count of clean updates since."""
    loader, state = Loader(config.data, 0), float16.init()
    state = state._replace(loss_scale=state.loss_scale._replace(scale=jnp.float32(2**17)))
    state = jax.device_put(state, float16.state_shardings)
    for index in range(3):
        state, _ = step(float16, state, loader.batch(index))
    assert state.skipped > 0
    with Checkpoints(tmp_path, CheckpointConfig(save_every=1)) as checkpoints:
        checkpoints.save(3, state, {})
        checkpoints.wait()
        restored = checkpoints.restore(3, float16.abstract_state)
    for index in range(3, 6):
        state, _ = step(float16, state, loader.batch(index))
        restored, _ = step(float16, restored, loader.batch(index))
    assert state.loss_scale.scale < 2**17
    for found, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_loss_scale_is_divided_out_of_gradients(float16, batch):
    """A power of two apart, float16's own rounding aside."""
    norms = []
    for scale in (1.0, 64.0):
        state = float16.init()
        scaled = state.loss_scale._replace(scale=jnp.float32(scale))
        state = jax.device_put(state._replace(loss_scale=scaled), float16.state_shardings)
        norms.append(float(step(float16, state, batch)[1]["grad_norm"]))
    assert norms[0] == pytest.approx(norms[1], rel=2e-3)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({}, r"recipe='fp8' needs GPUs of compute capability 8\.9 or more.*emulate=True"),
        (
            {"precision.emulate": "true"},
            r"exclude=\('layers\.0\.\*', 'layers\.-1\.\*'\) leaves none of the 2 layers",
        ),
        (
            {"precision.emulate": "true", "precision.exclude": "('layers.7.*',)"},
            r"exclude: 'layers\.7\.\*' fits none of the weights, which are layers\.0\."
            r"attention\.w_k_DKH to layers\.1\.ffn\.w_up_DF\.",
        ),
    ],
)
def test_fp8_that_would_not_be_is_one_line(tiny_config, overrides, line):
    config = tiny_config({"precision.recipe": "fp8", **overrides})
    with pytest.raises(ValueError, match=rf"^config\.precision\.{line}"):
        make_program(config)
