"""Bad input: one readable line before anything compiles, and the workdir untouched."""

import pathlib
import shutil

import pytest

from jaxtrain import pretrain
from jaxtrain.data.store import Store, Tokenization
from jaxtrain.data.writer import PartWriter, create
from tests.runs import TINY_VOCAB, Launcher, read_metrics


@pytest.fixture
def refused(monkeypatch, tiny_flags, tmp_path):
    """Starts the stage and returns the message it refuses with."""
    workdir = tmp_path / "run"

    def start(*flags):
        monkeypatch.setattr("sys.argv", ["pretrain", f"--workdir={workdir}", *tiny_flags, *flags])
        monkeypatch.setattr("jax.stages.Lowered.compile", None)  # nothing gets that far
        before = sorted(path.name for path in workdir.iterdir()) if workdir.exists() else None
        with pytest.raises(ValueError, match="config") as error:
            pretrain.main()
        after = sorted(path.name for path in workdir.iterdir()) if workdir.exists() else None
        assert before == after
        assert "\n" not in str(error.value)
        return str(error.value)

    start.workdir = workdir
    return start


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--config.optim.warmup_step=1"],
            "config.optim.warmup_step is not a known key; did you mean warmup_steps",
        ),
        (["--config.mesh.tensor=3"], "config.mesh: mesh tensor=3 must divide the 8 devices."),
        (
            ["--config.data.batch_size=6"],
            "config.data.batch_size=6 must be a multiple of 8 batch shards × 1 microbatches",
        ),
        (
            ["--config.data.batch_size_changes=((5, 12),)"],
            "config.data.batch_size=12 must be a multiple of 8 batch shards",
        ),
        (
            ["--config.mesh.tensor=8"],
            "config.mesh.tensor=8 must divide key/value heads (K=2) of parameter",
        ),
        (
            ["--config.model.vocab_size=65"],
            "has a vocabulary of 64, but config.model.vocab_size=65; set it to the store's.",
        ),
        (["--config.data.sources.a.path=nowhere"], "config.data.sources.a.path='nowhere': nowhere"),
        (["--config.init.from=nowhere"], "config.init.from='nowhere': nowhere/checkpoints has no"),
        (
            ["--config.optim.warmup_steps=20"],
            "config.optim.warmup_steps=20 must be < config.loop.num_steps=20",
        ),
        (
            ["--config.model.bidirectional=true"],
            "config.model.bidirectional=True does not fit config.data.objective='next_token'",
        ),
        (["--config.model.attention=cudnn"], "config.model.attention='cudnn' cannot be used: it"),
        (["--config.data.seq_len=100000"], "config.data.seq_len=100000 must be at most"),
        (
            ["--config.data.exhausted=stop", "--config.loop.num_steps=1000"],
            "config.loop.num_steps=1000 must be at most",
        ),
    ],
)
def test_a_config_that_cannot_run_is_refused(refused, flags, message):
    assert message in refused(*flags)
    assert not refused.workdir.exists()


def test_a_store_made_with_another_tokenizer_is_refused(refused, tmp_path):
    other = str(tmp_path / "store")
    tokenization = Tokenization(TINY_VOCAB, {"eos": 1}, "x" * 64, {})
    with PartWriter(other, tokenization) as writer:
        writer.add(range(3, 60), document_id="d", source="s", num_text_bytes=9)
    create(other, tokenization, "y" * 64, writer.parts)
    message = refused(f"--config.data.sources.b.path={other}")
    assert "was made with another tokenizer (xxxxxxxxxxxx, not tttttttttttt)" in message


@pytest.mark.parametrize("damage", ["truncate", "remove", "garble"])
def test_a_damaged_store_is_refused_by_file_name(refused, tiny_stores, tmp_path, damage):
    copy = tmp_path / "store"
    shutil.copytree(tiny_stores["a"], copy)
    tokens = next((copy / "parts").glob("*.tokens"))
    if damage == "truncate":
        tokens.write_bytes(tokens.read_bytes()[:-3])
        expected = f"{tokens.name}: shorter than"
    elif damage == "remove":
        tokens.unlink()
        expected = f"{tokens.name}: the file is missing"
    else:
        (copy / "store.json").write_text('{"format": ')
        expected = "store.json: not a token store's metadata"
    assert expected in refused(f"--config.data.sources.a.path={copy}")
    assert Store(tiny_stores["a"]).num_tokens  # the original is whole


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_flags):
    """A short run with its checkpoint at step 4."""
    workdir = tmp_path_factory.mktemp("finished")
    Launcher(tiny_flags).run(f"--workdir={workdir}", "--config.loop.num_steps=4")
    return workdir


def test_a_checkpoint_of_another_architecture_is_refused_leaf_by_leaf(refused, finished):
    message = refused(f"--config.init.from={finished}@4", "--config.model.num_layers=3")
    assert "params.blocks.ffn.w_up_DF is float32[2,32,64] in the checkpoint, float32[3,32,64]" in (
        message
    )
    assert "config.init.from" in refused(f"--config.init.from={finished}@3")


def test_a_workdir_of_another_config_is_refused_with_what_differs(refused, finished):
    shutil.copytree(finished, refused.workdir)
    message = refused("--config.model.d_ff=128", "--config.data.seq_len=16")
    assert "belongs to another run, which differs in" in message
    assert "config.model.d_ff: 64 -> 128" in message
    assert "config.data.seq_len: 32 -> 16" in message


def test_other_data_under_the_same_path_is_refused(refused, finished, tiny_stores):
    shutil.copytree(finished, refused.workdir)
    message = refused(f"--config.data.sources.a.path={tiny_stores['b']}")
    assert "config.data.sources.a holds other data than at the checkpoint of step 4" in message


def test_the_past_of_a_schedule_cannot_be_edited(refused, finished):
    shutil.copytree(finished, refused.workdir)
    message = refused("--config.data.sources.a.weight_changes=((2, 0.1),)")
    assert "the checkpoint of step 4 was trained on other batches" in message


def test_the_future_of_a_schedule_can_be_edited(launcher, finished, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(finished, workdir)
    out = launcher.run(
        f"--workdir={workdir}",
        "--config.loop.num_steps=8",
        "--config.data.sources.a.weight_changes=((4, 0.1),)",
        "--config.data.batch_size_changes=((6, 16),)",
    )
    assert "resumed at step 4" in out
    steps = [line["step"] for line in read_metrics(pathlib.Path(workdir)) if "loss" in line]
    assert steps == list(range(1, 9))


def test_a_users_error_is_one_line_on_the_command_line(launcher, tmp_path):
    out = launcher.run(f"--workdir={tmp_path / 'run'}", "--config.mesh.tensor=3", fails=True)
    assert out.splitlines()[-1].startswith("error: config.mesh: mesh tensor=3 must divide")
    assert "Traceback" not in out
    assert not (tmp_path / "run").exists()
