import math
import os
import pathlib
import socket
import subprocess
import sys
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxtrain.train import checkpoint
from jaxtrain.train.checkpoint import CheckpointConfig, CheckpointError, Checkpoints

EVERY_STEP = CheckpointConfig(save_every=1, keep_last=100)


class State(NamedTuple):
    step: Any
    params: Any
    opt_state: Any
    nontrained: Any
    rng: Any
    keys: Any


def make_mesh(**axes: int):
    devices = jax.devices()[: math.prod(axes.values())]
    auto = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=auto, devices=devices)


def make_state(mesh) -> State:
    """A state as training has it, with what checkpoints get wrong: NaN, -0.0, bf16, empty parts."""
    rng = np.random.default_rng(0)
    embed = rng.standard_normal((16, 8), dtype=np.float32)
    embed[0, :4] = [np.nan, np.inf, -0.0, np.float32(1e-45)]
    params = {
        "embed": jax.device_put(embed, NamedSharding(mesh, P(mesh.axis_names[-1], None))),
        "blocks": {
            "w_DF": jax.device_put(
                rng.standard_normal((2, 8, 24)).astype(ml_dtypes.bfloat16),
                NamedSharding(mesh, P(None, None, mesh.axis_names)),
            ),
            "nothing": {},
        },
    }
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.masked(optax.adamw(1e-3), {"embed": True, "blocks": {"w_DF": False, "nothing": {}}}),
    )
    return State(
        step=jnp.int32(7),
        params=params,
        opt_state=optimizer.init(params),
        nontrained={},
        rng=jax.random.key_data(jax.random.key(3)),
        keys=jax.random.split(jax.random.key(4), 3),
    )


def abstract(state: Any, sharding: Any = None) -> Any:
    def leaf(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding or x.sharding)

    return jax.tree.map(leaf, state)


def bits(leaf: Any) -> bytes:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def assert_same_bits(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert bits(x) == bits(y)


def save(directory: pathlib.Path, step: int, state: Any, metadata: dict | None = None) -> None:
    with Checkpoints(directory, EVERY_STEP) as checkpoints:
        checkpoints.save(step, state, metadata or {})


@pytest.fixture(scope="module")
def state():
    return make_state(make_mesh(data=2, fsdp=4))


@pytest.fixture(scope="module")
def saved(state, tmp_path_factory) -> pathlib.Path:
    """A directory with `state` as step 7, written from a mesh of 2 x 4 devices."""
    directory = tmp_path_factory.mktemp("saved")
    save(directory, 7, state, {"position": 7, "nested": {"list": [1, None]}})
    return directory


def small(step: int) -> dict[str, Any]:
    return {"w": jnp.full((64, 64), step, jnp.float32), "step": jnp.int32(step)}


# Restoring


def test_state_comes_back_bit_for_bit_with_its_shardings(state, saved):
    restored = checkpoint.restore(saved, 7, abstract(state))
    assert_same_bits(restored, state)
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


@pytest.mark.parametrize("axes", [{"data": 1}, {"fsdp": 4}, {"data": 4, "fsdp": 2}])
def test_state_of_eight_devices_comes_back_bit_for_bit_on_another_mesh(state, saved, axes):
    """CKP-05: on 1, 4 and 8 devices."""
    other = make_state(make_mesh(**axes))
    assert_same_bits(checkpoint.restore(saved, 7, abstract(other)), state)


def test_restored_typed_keys_give_the_same_numbers(state, saved):
    """CKP-06: keys come back as keys."""
    restored = checkpoint.restore(saved, 7, abstract(state))
    draw = jax.vmap(lambda key: jax.random.bits(key))
    np.testing.assert_array_equal(draw(restored.keys), draw(state.keys))


def test_metadata_comes_back_as_given(saved):
    metadata = Checkpoints(saved, EVERY_STEP).metadata(7)
    assert metadata == {"position": 7, "nested": {"list": [1, None]}}


@pytest.mark.parametrize("num_layers", [2, 6])
def test_restore_refuses_another_number_of_layers_and_names_every_leaf(tmp_path, num_layers):
    """CKP-01: 4 layers saved, 2 and 6 wanted."""

    def model(n):
        return {"blocks": {"w": jnp.zeros((n, 3)), "b": jnp.zeros((n,))}, "head": jnp.zeros((3,))}

    save(tmp_path, 1, model(4))
    with pytest.raises(ValueError, match="does not fit this state") as error:
        checkpoint.restore(tmp_path, 1, abstract(model(num_layers)))
    assert f"blocks.w is float32[4,3] in the checkpoint, float32[{num_layers},3] here" in str(
        error.value
    )
    assert f"blocks.b is float32[4] in the checkpoint, float32[{num_layers}] here" in str(
        error.value
    )
    assert "head" not in str(error.value).replace(str(tmp_path), "")
    assert "\n" not in str(error.value)


def test_restore_lists_missing_unexpected_and_mistyped_leaves_together(state, saved):
    wanted = abstract(state)
    params = {"embed": wanted.params["embed"].update(dtype=jnp.bfloat16), "more": wanted.rng}
    with pytest.raises(ValueError, match="does not fit this state") as error:
        checkpoint.restore(saved, 7, wanted._replace(params=params))
    for line in (
        "params.embed is float32[16,8] in the checkpoint, bfloat16[16,8] here",
        "params.blocks.w_DF is in the checkpoint only",
        "params.more is missing in the checkpoint",
    ):
        assert line in str(error.value)


def test_restore_refuses_keys_of_another_generator(state, saved):
    other = jax.eval_shape(lambda: jax.random.split(jax.random.key(0, impl="rbg"), 3))
    other = other.update(sharding=state.rng.sharding)
    with pytest.raises(ValueError, match=r"keys is key<fry>\[3\] in the checkpoint, key<rbg>\[3\]"):
        checkpoint.restore(saved, 7, abstract(state)._replace(keys=other))


def test_restore_refuses_a_leaf_without_a_sharding(state, saved):
    wanted = abstract(state)._replace(rng=jax.ShapeDtypeStruct((2,), jnp.uint32))
    with pytest.raises(ValueError, match="rng has no sharding"):
        checkpoint.restore(saved, 7, wanted)


def test_parameters_can_be_restored_alone_but_no_less_strictly(state, saved):
    params = {"params": abstract(state.params)}
    restored = checkpoint.restore(saved, 7, params, below="params.")
    assert_same_bits(restored["params"], state.params)
    del params["params"]["embed"]
    with pytest.raises(ValueError, match=r"params\.embed is in the checkpoint only"):
        checkpoint.restore(saved, 7, params, below="params.")


def test_restore_of_an_unknown_step_lists_those_that_are_there(state, saved):
    with pytest.raises(ValueError, match=r"step 8 in .* does not exist; whole ones are 7\."):
        checkpoint.restore(saved, 8, abstract(state))


def test_partial_load_takes_what_fits_and_says_what_it_skipped(state, saved):
    """CKP-01: only where it is asked for."""
    given = {
        "params": {
            "embed": abstract(state.params["embed"]),
            "blocks": {"w_DF": jnp.ones((3,))},
            "head": jnp.ones((5,)),
        }
    }
    loaded, skipped = checkpoint.restore_matching(saved, 7, given)
    assert_same_bits(loaded["params"].pop("embed"), state.params["embed"])
    assert loaded["params"] == {k: v for k, v in given["params"].items() if k != "embed"}
    lines = {line.split()[0]: line for line in skipped}
    assert lines["params.head"] == "params.head is missing in the checkpoint"
    assert "bfloat16[2,8,24] in the checkpoint" in lines["params.blocks.w_DF"]
    assert lines["opt_state.1.inner_state.0.count"].endswith("is in the checkpoint only")
    assert len(lines) == len(jax.tree.leaves(state)) - 1 + 1  # all but embed, and head


# Saving


def test_save_is_not_disturbed_by_a_step_that_donates_the_state(tmp_path):
    step = jax.jit(lambda x: jax.tree.map(lambda leaf: leaf * 2, x), donate_argnums=0)
    state = {f"w{i}": jnp.arange(100_000, dtype=jnp.float32) + i for i in range(8)}
    expected = jax.tree.map(np.array, state)
    wanted = abstract(state)
    with Checkpoints(tmp_path, EVERY_STEP) as checkpoints:
        checkpoints.save(1, state, {})
        for _ in range(5):
            state = step(state)
    assert_same_bits(jax.tree.map(np.asarray, checkpoint.restore(tmp_path, 1, wanted)), expected)


def test_nothing_is_written_before_the_first_save(tmp_path):
    with Checkpoints(tmp_path / "new", EVERY_STEP) as checkpoints:
        assert checkpoints.latest() is None
    assert not (tmp_path / "new").exists()


def test_steps_are_saved_in_order_only(tmp_path):
    with Checkpoints(tmp_path, EVERY_STEP) as checkpoints:
        checkpoints.save(2, small(2), {})
        for step in (1, 2):
            with pytest.raises(ValueError, match=f"step {step} cannot be saved after step 2"):
                checkpoints.save(step, small(step), {})


@pytest.fixture
def held(tmp_path, monkeypatch):
    """A save that seems under way until `release` is set, and to fail where `error` is set."""

    class Held:
        checkpoints = Checkpoints(tmp_path, EVERY_STEP)
        release = threading.Event()
        error: Exception | None = None

    finish = Held.checkpoints._writer.wait_until_finished

    def wait_until_finished():
        finish()
        if threading.current_thread() is not threading.main_thread():
            Held.release.wait()
            if Held.error:
                raise Held.error

    monkeypatch.setattr(Held.checkpoints._writer, "wait_until_finished", wait_until_finished)
    Held.checkpoints.save(5, small(5), {})
    yield Held
    Held.release.set()


def test_a_save_under_way_is_not_waited_for_and_told_once_when_whole(held):
    held.checkpoints.check()
    assert held.checkpoints.newly_saved() == []
    held.release.set()
    held.checkpoints.wait()
    assert held.checkpoints.newly_saved() == [5]
    assert held.checkpoints.newly_saved() == []


@pytest.mark.parametrize("call", ["check", "newly_saved", "wait", "close", "save"])
def test_a_failed_save_is_raised_by_every_later_call(held, call):
    held.error = RuntimeError("No space left\n on device")
    held.release.set()
    with pytest.raises(CheckpointError, match="No space left on device"):
        held.checkpoints.wait()
    arguments = (6, small(6), {}) if call == "save" else ()
    with pytest.raises(CheckpointError) as error:
        getattr(held.checkpoints, call)(*arguments)
    assert f"checkpoint of step 5 was not written to {held.checkpoints.directory}/5" in str(
        error.value
    )


def test_a_failed_save_does_not_hide_the_error_that_ends_the_run(held, caplog):
    held.error = RuntimeError("No space left on device")
    held.release.set()
    with pytest.raises(KeyError, match="first"), held.checkpoints:
        raise KeyError("first")
    assert "checkpoint of step 5 was not written" in caplog.text


def test_a_save_that_cannot_start_names_step_and_path(tmp_path):
    directory = tmp_path / "checkpoints"
    directory.write_text("a file in the way")
    with (
        Checkpoints(directory, EVERY_STEP) as checkpoints,
        pytest.raises(CheckpointError, match=f"step 3 was not written to {directory}/3"),
    ):
        checkpoints.save(3, small(3), {})


# Which checkpoints stay


@pytest.mark.parametrize(
    ("config", "deleted"),
    [
        (CheckpointConfig(10, keep_last=2, keep_best=0), [10, 20, 30, 40]),
        (CheckpointConfig(10, keep_last=2, keep_every=20, keep_best=0), [10, 30]),
        (CheckpointConfig(10, keep_last=1, keep_best=1), [10, 20, 40, 50]),
        (CheckpointConfig(10, keep_last=1, keep_best=2), [10, 20, 50]),
        (CheckpointConfig(10, keep_last=1, keep_best=9), [20, 50]),
        (CheckpointConfig(10, keep_last=9, keep_best=0), []),
    ],
)
def test_last_multiples_and_best_stay(config, deleted):
    losses = {10: 3.0, 20: math.nan, 30: 1.0, 40: 1.5, 50: None, 60: 2.0}
    assert checkpoint.steps_to_delete(losses, config) == deleted


def test_of_equally_good_checkpoints_the_newer_stays():
    config = CheckpointConfig(1, keep_last=1, keep_best=1)
    assert checkpoint.steps_to_delete({1: 2.0, 2: 2.0, 3: 2.5}, config) == [1]


@given(
    losses=st.dictionaries(st.integers(0, 99), st.none() | st.floats(), min_size=1),
    keep_last=st.integers(1, 5),
    keep_best=st.integers(0, 5),
)
def test_newest_and_best_are_never_deleted(losses, keep_last, keep_best):
    config = CheckpointConfig(1, keep_last=keep_last, keep_best=keep_best)
    deleted = checkpoint.steps_to_delete(losses, config)
    assert max(losses) not in deleted
    finite = [loss for loss in losses.values() if loss is not None and math.isfinite(loss)]
    if keep_best and finite:
        assert min(finite) in [loss for step, loss in losses.items() if step not in deleted]


def test_saving_deletes_by_policy_and_eval_loss(tmp_path):
    config = CheckpointConfig(1, keep_last=1, keep_every=4, keep_best=1)
    with Checkpoints(tmp_path, config) as checkpoints:
        for step, loss in enumerate([3.0, 1.0, 2.0, 2.0, None, 9.0], start=1):
            metrics = {} if loss is None else {"eval/loss": loss}
            checkpoints.save(step, small(step), {"metrics": metrics})
    assert Checkpoints(tmp_path, config).steps() == [2, 4, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "4", "6"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"save_every": 0}, "save_every=0 must be at least 1"),
        ({"keep_last": 0}, "keep_last=0 must be at least 1"),
        ({"keep_every": 0}, "keep_every=0 must be at least 1"),
        ({"keep_best": -1}, "keep_best=-1 must be at least 0"),
        ({"save_every": 10, "keep_every": 15}, "keep_every=15 must be a multiple of save_every=10"),
    ],
)
def test_config_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        CheckpointConfig(**fields)


# Two processes

PROCESS = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jaxtrain.train import checkpoint

directory, address, index = sys.argv[1:]
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(address, 2, int(index))
auto = (AxisType.Auto,) * 2

def put(mesh, spec, values):
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(values.shape, sharding, lambda i: values[i])

def make(mesh, scale):
    values = np.arange(64, dtype=np.float32).reshape(8, 8) * scale
    return {"w": put(mesh, P("data", "fsdp"), values), "r": put(mesh, P(), values[0]),
            "f": put(mesh, P(None, "fsdp"), values)}

square = jax.make_mesh((2, 2), ("data", "fsdp"), axis_types=auto)
flat = jax.make_mesh((1, 4), ("data", "fsdp"), axis_types=auto)
with checkpoint.Checkpoints(directory, checkpoint.CheckpointConfig(1, keep_last=1)) as checkpoints:
    for step in (1, 2):
        checkpoints.save(step, make(square, step), {"position": step})
    checkpoints.wait()
    assert checkpoints.newly_saved() == [1, 2]
    assert checkpoints.latest() == 2
    wanted = make(flat, 2)
    restored = checkpoints.restore(2, wanted)
    for name, leaf in restored.items():
        assert leaf.sharding == wanted[name].sharding
        for a, b in zip(leaf.addressable_shards, wanted[name].addressable_shards):
            np.testing.assert_array_equal(a.data, b.data)
print("done")
"""


@pytest.mark.slow
def test_two_processes_save_one_checkpoint_and_restore_it_on_another_mesh(tmp_path, root_dir):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": str(root_dir), "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path), address, str(index)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        for process in reversed(processes):  # the one that does not hold the coordinator first
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            assert out.endswith("done\n")
    finally:
        for process in processes:
            process.kill()
    assert Checkpoints(tmp_path, EVERY_STEP).steps() == [2]
    expected = np.arange(64, dtype=np.float32).reshape(8, 8) * 2
    mesh = make_mesh(data=8)
    wanted = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    loaded, _ = checkpoint.restore_matching(tmp_path, 2, {"w": wanted, "f": wanted})
    for leaf in loaded.values():
        np.testing.assert_array_equal(leaf, expected)
