"""LoRA runs through the real step and from the command line."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import optax
import pytest

from jaxtrain import config_program, starting_point, stored_weights
from jaxtrain.data.loader import Loader
from jaxtrain.export import export
from jaxtrain.lora.adapters import BASE
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.models.parameters import flatten
from jaxtrain.optim.build import Optimizer
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.stored_weights import named
from jaxtrain.train.checkpoint_read import open_leaf, read_record
from tests.hub.tiny import tensors, write
from tests.integration.test_two_processes import finish, start_pair
from tests.runs import Launcher, read_metrics

# One layer and plain attention: compiling is what these tests cost.
LORA = {
    "init.from": "somewhere", "init.load": "params", "lora.rank": 4, "model.num_layers": 1,
    "model.attention": "xla", "model.dropout": 0.0,
}  # fmt: skip


def make_program(config, num_devices=1, optimizer=None, **mesh):
    devices = make_mesh(dataclasses.replace(MeshConfig(), **mesh), jax.devices()[:num_devices])
    program = config_program.make_program(config, cross_entropy(config.loss), devices)
    return program if optimizer is None else dataclasses.replace(program, make_optimizer=optimizer)


def sgd(axes):
    """Plain gradient descent at rate 1: the update is the gradient."""
    del axes
    return Optimizer(optax.sgd(1.0), lambda count: np.float32(1.0), "sgd")


def gradients(config, **mesh):
    """(loss, gradients) of the first batch at random updates."""
    program = make_program(config, optimizer=sgd, **mesh)
    batch = Loader(config.data, config.loop.seed).batch(0)
    rng, state = np.random.default_rng(0), program.init()
    before = jax.tree.map(
        lambda leaf: 0.1 * rng.standard_normal(leaf.shape).astype(np.float32), state.params
    )
    params = jax.device_put(before, program.state_shardings.params)
    after, metrics = program.train_step(
        state._replace(params=params), program.init_frozen(), program.put(batch, 8)
    )
    grads = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, after.params, before)
    return float(metrics["loss"]), flatten(grads)


def test_accumulated_on_8_devices_is_the_whole_batch_on_one(tiny_config):
    loss, grads = gradients(tiny_config(LORA))
    split = tiny_config({**LORA, "loop.num_microbatches": 2})
    split_loss, split_grads = gradients(split, num_devices=8, data=2, fsdp=2, tensor=2)
    assert split_loss == pytest.approx(loss, rel=1e-5)
    for path, expected in grads.items():
        # An update is read off parameters of size ~0.1, whose float32 rounding is the floor.
        atol = 1e-5 * np.abs(expected).max() + 2e-8
        np.testing.assert_allclose(split_grads[path], expected, rtol=0, atol=atol, err_msg=path)


def test_updates_learn_and_the_base_keeps_every_bit(tiny_config):
    config = tiny_config({**LORA, "loop.num_steps": 60})
    program = make_program(config)
    batch = program.put(Loader(config.data, 0).batch(0), 8)
    state, frozen = program.init(), program.init_frozen()
    before, losses = jax.device_get(frozen), []
    for _ in range(60):
        state, metrics = program.train_step(state, frozen, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.6 * losses[0]
    jax.tree.map(np.testing.assert_array_equal, frozen, before)
    moments = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state))
    assert moments < 2.1 * sum(leaf.size for leaf in jax.tree.leaves(state.params))


# ----------------------------------------------------------------------------- the command line

SIZES = {
    "model.vocab_size": 72,  # 8 more than the stores have: padding
    "model.num_layers": 3,
    "model.d_model": 8,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.head_dim": 4,
    "model.d_ff": 12,
}
FLAGS = [
    *(f"--config.{name}={value}" for name, value in SIZES.items()), "--config.init.load=params",
    "--config.lora.rank=2", "--config.optim.schedule=constant", "--config.loop.num_steps=6",
    "--config.checkpoint.save_every=3",
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    content = tensors()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        content[name] = np.tile(content[name], (3, 1))
    return write(tmp_path_factory.mktemp("base") / "llama", content, {"vocab_size": 72})


@pytest.fixture(scope="module")
def run(base, tmp_path_factory, tiny_flags):
    """(workdir, what was printed) of 6 steps with dropout."""
    workdir = tmp_path_factory.mktemp("lora") / "run"
    launcher = Launcher(tiny_flags)
    out = launcher.run(f"--workdir={workdir}", *FLAGS, f"--config.init.from={base}")
    return workdir, out


def record(workdir):
    """What a run's checkpoints say of its base."""
    return read_record(workdir / "checkpoints", 6).metadata["base"]


def saved_params(workdir, step):
    directory = workdir / "checkpoints"
    names = [name for name in read_record(directory, step).leaves if name.startswith("params.")]
    return {name: open_leaf(directory, step, name).read().result() for name in names}


def test_a_run_says_what_it_trains_and_saves_only_that(run):
    workdir, out = run
    num_trained = 3 * 2 * (2 * 8 + 2 * 8 + 2 * (8 + 4) + 3 * (8 + 12))
    assert f"lora: rank 2, alpha 16 on 7 arrays of matrices: {num_trained:,} parameters" in out
    assert "frozen in float32" in out
    assert "blocks/attention/w_q_DNH/a" in out
    params = saved_params(workdir, 6)
    assert sum(leaf.size for leaf in params.values()) == num_trained
    assert all(name.endswith((".a", ".b")) for name in params)
    losses = [line["loss"] for line in read_metrics(workdir) if "loss" in line]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert json.loads((workdir / "hub" / "config.json").read_text())["model_type"] == "llama"


def test_a_run_resumes_bit_for_bit_with_its_base_elsewhere(run, base, launcher, tmp_path):
    workdir, _ = run
    again = tmp_path / "run"
    shutil.copytree(workdir, again)
    shutil.rmtree(again / "checkpoints" / "6")
    shutil.copytree(base, tmp_path / "moved")
    out = launcher.run(f"--workdir={again}", *FLAGS, f"--config.init.from={tmp_path / 'moved'}")
    assert "resumed at step 3" in out
    found, expected = (saved_params(where, 6) for where in (again, workdir))
    for name, leaf in expected.items():
        assert found[name].tobytes() == leaf.tobytes(), name


@pytest.mark.slow
def test_two_processes_hold_one_base_between_them(run, base, launcher, tmp_path):
    """A run of one process goes on in two: its base is known by what each of them holds."""
    again = tmp_path / "run"
    shutil.copytree(run[0], again)
    shutil.rmtree(again / "checkpoints" / "6")
    split = ["--config.mesh.data=1", "--config.mesh.fsdp=0", f"--config.init.from={base}"]
    outputs = finish(start_pair(launcher, again, *FLAGS, *split))
    assert "in 2 process(es)" in outputs[0]
    assert "resumed at step 3" in outputs[0]
    assert record(again) == record(run[0])
    found, expected = (
        [line["loss"] for line in read_metrics(where) if "loss" in line]
        for where in (again, run[0])
    )
    assert len(found) == 6
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def find(run, base, tiny_config, tmp_path):
    """Finds the start of a run with overrides; the program fits it."""

    def look(overrides, own=None):
        fixed = {**SIZES, "init.from": base, "init.load": "params", "lora.rank": 2}
        config = tiny_config({**fixed, "loop.num_steps": 6, **overrides})
        own = own or tmp_path / "new" / "checkpoints"
        stores = Loader(config.data, config.loop.seed).metadata()
        start = starting_point.find(config, own, stores, {})
        program = make_program(config)
        start.check(program)
        return start, program

    return look


def test_another_base_is_refused_when_a_run_resumes(find, run, base, tmp_path):
    other = tmp_path / "other"
    content = tensors()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        content[name] = np.tile(content[name], (3, 1))
    content["model.norm.weight"][3] = 7
    write(other, content, {"vocab_size": 72})
    start, program = find({"init.from": other}, run[0] / "checkpoints")
    assert start.step == 6
    with pytest.raises(ValueError, match=r"other is another model .*: final_norm\.scale has"):
        start.load_frozen(program)


def test_a_branch_continues_updates_on_the_same_base(find, run):
    workdir, _ = run
    start, program = find({"init.from": f"{workdir}@3", "init.load": "state"})
    assert (start.step, start.weights.where) == (3, record(workdir)["where"])
    state = start.load(program)
    for name, leaf in saved_params(workdir, 3).items():
        np.testing.assert_array_equal(flatten(state.params)[name.removeprefix("params.")], leaf)
    assert set(start.load_frozen(program)) == {BASE}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lora.rank": 3}, r"config\.lora\.rank: 2 -> 3\. Set config\.init\.load=params"),
        ({"lora.rank": None}, r"config\.lora\.rank: 2 -> None"),
        ({"lora.alpha": 3.0}, r"config\.lora\.alpha: 16\.0 -> 3\.0"),
    ],
)
def test_a_branch_with_other_updates_is_refused(find, run, overrides, message):
    with pytest.raises(ValueError, match=message):
        find({"init.from": run[0], "init.load": "state", **overrides})


def test_merged_parameters_go_into_a_full_run_and_through_an_export_alike(find, run, tmp_path):
    """Base + alpha / rank · A·B, in float64; the way out and in again keeps every bit."""
    workdir, _ = run
    start, program = find({"init.from": f"{workdir}@6", "lora.rank": None})
    params = flatten(start.load(program).params)
    abstract, axes = program.abstract_state.params, program.model.axes
    base = flatten(stored_weights.load(named(record(workdir)["where"]), abstract, axes))
    path, of_updates = "blocks.ffn.w_up_DF", saved_params(workdir, 6)
    a, b = (of_updates[f"params.{path}.{which}"].astype(float) for which in "ab")
    expected = base[path] + 8.0 * np.einsum("ldr,lrf->ldf", a, b)
    assert np.abs(params[path] - base[path]).max() > 1e-4
    np.testing.assert_allclose(params[path], expected, rtol=1e-6, atol=1e-6)

    assert f"{workdir} step 6" in export(workdir, None, tmp_path / "out", "float32")
    assert "- `llama` with low-rank updates" in (tmp_path / "out" / "README.md").read_text()
    again = stored_weights.load(named(str(tmp_path / "out")), abstract, axes)
    for name, leaf in flatten(again).items():
        np.testing.assert_array_equal(leaf, params[name], err_msg=name)
