"""Where runs start from: branches of WSD runs and parameters of other runs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import config as config_lib
from jaxtrain import config_program, stage, starting_point
from jaxtrain.data.loader import Loader
from jaxtrain.hub.model import HubModel
from jaxtrain.import_hf import import_model
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel import processes
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.stored_weights import OfCheckpoint
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from jaxtrain.train.checkpoint_read import open_leaf, read_record
from tests.hub.tiny import add_tokenizer, tensors, write
from tests.runs import Launcher, read_metrics

WSD = ["--config.optim.schedule=wsd", "--config.optim.decay_steps=5"]


@pytest.fixture(scope="module")
def trunk(tmp_path_factory, tiny_flags):
    """A WSD run of 15 steps: stable to 10, decayed from there; checkpoints at 5, 10, 15."""
    workdir = tmp_path_factory.mktemp("trunk")
    Launcher(tiny_flags).run(
        f"--workdir={workdir}", *WSD, "--config.loop.num_steps=15",
        "--config.checkpoint.save_every=5",
    )  # fmt: skip
    return workdir


@pytest.fixture
def saved(tmp_path, tiny_config):
    """Checkpoints of steps 2, 4 and 6 in `run/`; `find` looks at metadata only."""
    config = tiny_config()
    stores = Loader(config.data, config.loop.seed).metadata()
    with Checkpoints(tmp_path / "run" / "checkpoints", CheckpointConfig(1)) as checkpoints:
        for step in (2, 4, 6):
            metadata = {
                "config": config_lib.to_plain(config), "data": stores, "updates": step,
                "num_branched_updates": 0, "heldout": {"h": "1"},
            }  # fmt: skip
            checkpoints.save(step, {"w": jnp.zeros(3)}, metadata)
    return tmp_path / "run" / "checkpoints"


@pytest.fixture
def find(tiny_config, tmp_path, saved):
    """Finds the start of the tiny run with overrides in the workdir of `saved`, or another."""

    def look(overrides=None, own=saved, heldout="1", stores=None):
        config = tiny_config(overrides)
        stores = stores or Loader(config.data, config.loop.seed).metadata()
        return starting_point.find(config, own, stores, {"h": heldout})

    look.elsewhere = tmp_path / "elsewhere" / "checkpoints"
    return look


def spoil_json(step):
    (step / "run" / "metadata.json").write_text("{")


def spoil_format(step):
    record = step / "run" / "metadata.json"
    record.write_text(record.read_text().replace('"format": 1', '"format": 2'))


def spoil_access(step):
    record = step / "run" / "metadata.json"
    record.unlink()
    record.symlink_to(record)  # fails for root too


def test_a_whole_workdir_is_resumed_without_a_word(find):
    assert find()[:4] == (find().note, (), find().directory, 6)


def test_a_damaged_newer_checkpoint_is_passed_over_and_said(find, saved):
    spoil_json(saved / "6")
    start = find()
    assert start.step == 4
    (warning,) = start.warnings
    assert warning.startswith(f"checkpoint {saved / '6'} is damaged (run/metadata.json cannot be")
    assert "the newest whole one, of step 4, is taken instead; a run that comes by" in warning


def test_a_damaged_older_checkpoint_does_not_matter(find, saved):
    spoil_json(saved / "2")
    assert find().step == 6
    assert find().warnings == ()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [(spoil_format, "format 2, this version reads 1"), (spoil_access, "symbolic links")],
)
def test_a_newer_checkpoint_that_may_be_whole_is_never_passed_over(find, saved, spoil, reason):
    spoil(saved / "6")
    with pytest.raises(ValueError, match=f"{saved / '6'}: .*{reason}"):
        find()
    with pytest.raises(ValueError, match=f"{saved / '6'}: .*{reason}"):
        find({"init.from": saved.parent}, own=find.elsewhere)


@pytest.mark.parametrize("spoil", [spoil_json, spoil_format, spoil_access])
def test_a_run_without_a_readable_checkpoint_does_not_begin_anew(find, saved, spoil):
    for step in (2, 4, 6):
        spoil(saved / str(step))
    before = sorted(saved.rglob("*"))
    with pytest.raises(
        ValueError, match=r"cannot be used, and nothing was touched: .*checkpoints/6"
    ):
        find()
    assert sorted(saved.rglob("*")) == before


def test_leftovers_alone_are_no_checkpoints(find):
    (find.elsewhere / "3.orbax-checkpoint-tmp").mkdir(parents=True)
    assert find(own=find.elsewhere).note == "initialised from seed 0"


@pytest.mark.parametrize("load", ["state", "params"])
def test_a_checkpoint_of_another_tokenizer_is_refused(find, saved, load):
    stores = {"a": {"fingerprint": "f" * 64, "tokenizer_sha256": "x" * 64}}
    flags = {"init.from": saved.parent, "init.load": load}
    with pytest.raises(ValueError, match="was made with the tokenizer xxxxxxxxxxxx, the check"):
        find(flags, own=find.elsewhere, stores=stores)


def test_a_run_goes_on_with_its_own_a_named_or_no_model(find, saved):
    assert find().origin == OfCheckpoint(find().directory, 6)
    for load in ("state", "params"):
        start = find({"init.from": f"{saved.parent}@4", "init.load": load}, own=find.elsewhere)
        assert start.origin == OfCheckpoint(saved, 4)
    assert find(own=find.elsewhere).origin is None


def test_a_branch_onto_other_data_says_that_the_stream_is_new(find, saved, tiny_stores):
    same = find({"init.from": saved.parent}, own=find.elsewhere)
    assert (same.step, same.warnings) == (6, ())
    flags = {
        "init.from": f"{saved.parent}@4", "data.sources.a.weight": 0.1,
        "data.sources.b.path": tiny_stores["heldout"],
    }  # fmt: skip
    (warning,) = find(flags, own=find.elsewhere).warnings
    assert warning.startswith("the data stream is new, and position 4 continues in it: ")
    assert "config.data.sources.a.weight: 0.7 -> 0.1" in warning
    assert "config.data.sources.b holds other data than at the checkpoint of step 4" in warning


def test_other_held_out_data_is_said_on_resume(find):
    (warning,) = find(heldout="2").warnings
    assert warning.startswith("held-out data is other than at the checkpoint of step 6 (h): ")


def test_a_rate_that_rises_again_is_said_on_resume(find):
    (warning,) = find({"loop.num_steps": 40}).warnings
    assert warning.startswith("the learning rate rises again from ")


def test_every_process_starts_where_the_primary_does(find, monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    broadcast = "broadcast_one_to_all"
    monkeypatch.setattr(processes.multihost_utils, broadcast, lambda step: np.int32(4))
    assert find().step == 4
    monkeypatch.setattr(processes.multihost_utils, broadcast, lambda step: np.int32(-1))
    assert find().note == "initialised from seed 0"


def lrs(workdir):
    return {line["step"]: line["lr"] for line in read_metrics(workdir) if "lr" in line}


def test_a_branch_from_the_stable_phase_decays_from_there(trunk, launcher, tmp_path):
    out = launcher.run(
        f"--workdir={tmp_path}", *WSD, "--config.loop.num_steps=10",
        f"--config.init.from={trunk}@5",
    )  # fmt: skip
    assert f"branched from {trunk}@5 (step 5)" in out
    whole, branch = lrs(trunk), lrs(tmp_path)
    assert list(branch) == [6, 7, 8, 9, 10]
    # Steps 6-10 of the branch have the rates of steps 11-15 of the trunk: the same decay, earlier.
    np.testing.assert_allclose(list(branch.values()), [whole[step + 5] for step in branch])
    # The branch's first step sees the trunk's data, moments and dropout: the same loss.
    losses = [
        {line["step"]: line["loss"] for line in read_metrics(w) if "loss" in line}
        for w in (trunk, tmp_path)
    ]
    assert losses[0][6] == losses[1][6]
    assert read_record(tmp_path / "checkpoints", 10).metadata["num_branched_updates"] == 5


def test_a_branch_from_inside_its_own_decay_is_refused(trunk, launcher, tmp_path):
    out = launcher.run(
        f"--workdir={tmp_path / 'run'}", *WSD, "--config.loop.num_steps=13",
        f"--config.init.from={trunk}@10", fails=True,
    )  # fmt: skip
    assert "error: config.optim." in out
    assert not (tmp_path / "run").exists()


def test_load_params_takes_weights_and_nothing_else(trunk, launcher, tmp_path):
    out = launcher.run(
        f"--workdir={tmp_path}", f"--config.init.from={trunk}@10", "--config.init.load=params",
        "--config.loop.num_steps=3", "--config.optim.lr=1e-30", "--config.optim.warmup_steps=0",
    )  # fmt: skip
    assert "everything else new" in out
    steps = [line["step"] for line in read_metrics(tmp_path) if "loss" in line]
    assert steps == [1, 2, 3]
    path = "params.blocks.ffn.w_up_DF"
    before, after = (
        open_leaf(where / "checkpoints", step, path).read().result()
        for where, step in ((trunk, 10), (tmp_path, 3))
    )
    np.testing.assert_array_equal(before, after)  # at a rate of 1e-30 nothing moves


def test_own_checkpoints_win_over_init_from(trunk, launcher, tmp_path):
    flags = [f"--workdir={tmp_path}", *WSD, f"--config.init.from={trunk}@5"]
    launcher.run(*flags, "--config.loop.num_steps=10")
    out = launcher.run(*flags, "--config.loop.num_steps=10")
    assert "resumed at step 10" in out
    assert "nothing is left to train" in out
    assert json.loads((tmp_path / "config.json").read_text())["init"]["from"] == f"{trunk}@5"


def test_a_finished_run_started_with_fewer_steps_is_refused(trunk, launcher):
    out = launcher.run(f"--workdir={trunk}", *WSD, "--config.loop.num_steps=12", fails=True)
    assert "config.loop.num_steps=12 must be at least 15" in out
    assert jax.tree.leaves(lrs(trunk))  # its metrics are still there


# ------------------------------------------------------------------------- Hugging Face models

HUB_SIZES = {
    "model.vocab_size": 72,  # 8 more than the stores have: padding
    "model.num_layers": 3,
    "model.d_model": 8,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.head_dim": 4,
    "model.d_ff": 12,
    "init.load": "params",
}


@pytest.fixture
def hub_model(tmp_path):
    content = tensors()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        content[name] = np.tile(content[name], (3, 1))
    return write(tmp_path / "model", content, {"vocab_size": 72})


def test_weights_of_a_hugging_face_directory_are_taken(find, hub_model, tiny_config):
    overrides = {**HUB_SIZES, "init.from": hub_model}
    start = find(overrides, own=find.elsewhere)
    assert start.note == f"weights of {hub_model} (llama)"
    config = tiny_config(overrides)
    stage.open_source(config)  # the larger vocabulary is no error
    mesh = make_mesh(MeshConfig(data=1, fsdp=2), jax.devices()[:2])
    program = config_program.make_program(config, cross_entropy(config.loss), mesh)
    start.check(program)
    state = start.load(program)
    expected = tensors()["model.layers.2.mlp.up_proj.weight"].T
    np.testing.assert_array_equal(state.params["blocks"]["ffn"]["w_up_DF"][2], expected)
    assert int(state.step) == 0


def test_a_hugging_face_model_that_is_another_is_refused(find, hub_model):
    sizes = {**HUB_SIZES, "init.from": hub_model}
    with pytest.raises(
        ValueError, match=r"is another model than config\.model, which has norm_eps"
    ):
        find({**sizes, "model.norm_eps": 1e-3}, own=find.elsewhere)
    with pytest.raises(
        ValueError, match=r"is a model and no checkpoint; set config\.init\.load=par"
    ):
        find({**sizes, "init.load": "state"}, own=find.elsewhere)


def test_a_hugging_face_model_with_another_tokenizer_is_refused(find, hub_model):
    add_tokenizer(hub_model)
    with pytest.raises(
        ValueError, match=r"config\.init\.from=.* does not fit the data: .*tokenizer"
    ):
        find({**HUB_SIZES, "init.from": hub_model}, own=find.elsewhere)


def test_an_imported_workdir_gives_parameters_only(find, hub_model, tmp_path):
    workdir = tmp_path / "imported"
    import_model(HubModel(hub_model), workdir, "m")
    sizes = {**HUB_SIZES, "init.from": workdir}
    start = find(sizes, own=find.elsewhere)
    assert (start.step, start.directory) == (0, None)
    assert start.weights == OfCheckpoint(workdir / "checkpoints", 0)
    with pytest.raises(
        ValueError, match=r"was imported and holds parameters only; set config\.init"
    ):
        find({**sizes, "init.load": "state"}, own=find.elsewhere)


def test_a_frozen_model_that_is_gone_is_named_with_its_key(tiny_config, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"^the reference cannot be read: gone is neither .* with config\.reference\.from\.$",
    ):
        starting_point.find(tiny_config(), tmp_path, {}, {}, {"reference": "gone"})
