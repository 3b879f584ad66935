import contextlib
import dataclasses
import json
import shutil

import pytest

from jaxtrain import config as config_lib
from jaxtrain import stage
from jaxtrain.data.config import SourceConfig
from jaxtrain.data.heldout import open_heldout
from jaxtrain.data.store import Store
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.run_config import RunConfig
from jaxtrain.starting_point import StartingPoint
from jaxtrain.train.checkpoint_read import read_record
from tests.runs import read_metrics


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_flags, tiny_stores):
    """(workdir, output) of a run of 4 steps with a held-out set."""
    from tests.runs import TINY_RUN, Launcher

    workdir = tmp_path_factory.mktemp("run")
    config = workdir / "with_heldout.py"
    config.write_text(
        f"import runpy\n"
        f"def get_config():\n"
        f"    c = runpy.run_path({str(TINY_RUN)!r})['get_config']()\n"
        f"    c.data.eval_sources = {{'heldout': {{'path': {tiny_stores['heldout']!r}}}}}\n"
        f"    return c\n"
    )
    flags = [f"--config={config}", *tiny_flags[1:]]
    out = Launcher(flags).run(
        f"--workdir={workdir / 'run'}", "--config.loop.num_steps=4", "--config.loop.eval_every=2"
    )
    return workdir / "run", out


def test_start_up_says_what_will_run(run):
    workdir, out = run
    report = json.loads((workdir / "run.json").read_text())
    assert {
        "allocator", "cpu devices", "processes", "mesh", "model", "attention", "optimizer",
        "data", "start", "mfu", "peak",
    } <= report.keys()  # fmt: skip
    assert report["attention"].startswith("chunked: ")
    assert "needs an NVIDIA GPU" in report["attention"]  # why not the fast path
    for name in ("attention", "mesh", "peak"):
        assert f"{name}: {report[name]}" in out


def test_start_up_lists_what_is_decayed(run):
    _, out = run
    # 2 layers of (32·32 query, 2·32·16 key and value, 32·32 output, 3·32·64 ffn) and the head.
    decayed = 2 * (1024 + 1024 + 1024 + 6144) + 64 * 32
    assert f"{decayed:,}" in out


def test_held_out_scores_are_shown_and_written(run):
    workdir, out = run
    lines = [line for line in read_metrics(workdir) if "eval/loss" in line]
    assert [line["step"] for line in lines] == [2, 4]
    for line in lines:
        shown = f"{line['eval/loss']:.4f} nats per token, {line['eval/bits_per_byte']:.3f} bits"
        assert f"step {line['step']} held-out: {shown}" in out


def test_a_saved_checkpoint_is_announced(run):
    workdir, out = run
    assert "saved checkpoint of step 4" in out
    assert (workdir / "checkpoints" / "4").is_dir()


def test_every_part_of_the_workdir_is_there(run):
    workdir, _ = run
    names = {path.name for path in workdir.iterdir()}
    assert {"config.json", "run.json", "metrics.jsonl", "tensorboard", "checkpoints"} <= names


def test_checkpoints_record_the_held_out_data(run, tiny_stores):
    workdir, _ = run
    fingerprint = Store(tiny_stores["heldout"]).metadata.fingerprint
    assert read_record(workdir / "checkpoints", 4).metadata["heldout"] == {"heldout": fingerprint}


def train(config, workdir):
    source = stage.open_source(config)
    heldout = open_heldout(config.data, config.loop.seed)
    stage.train(config, workdir, cross_entropy(config.loss), source, heldout)


def test_a_run_that_ended_just_before_is_resumed_from_its_last_step(run, tmp_path, monkeypatch):
    """Another process had the workdir, which was empty at the first look, and has let it go."""
    workdir, _ = run

    @contextlib.contextmanager
    def hold(path):
        shutil.copytree(workdir, path)
        yield

    steps = []
    monkeypatch.setattr(stage.workdir_lib, "hold", hold)
    monkeypatch.setattr(stage.Loop, "run", lambda loop, state: steps.append(int(state.step)))
    plain = json.loads((workdir / "config.json").read_text())
    train(config_lib.resolve(RunConfig, plain), tmp_path / "run")
    assert steps == [4]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["start"].startswith("resumed")


def test_a_start_that_fails_leaves_the_workdir_to_another_config(
    tiny_config, tmp_path, monkeypatch, capsys
):
    def fail(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(stage.StartingPoint, "load", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(tiny_config(), tmp_path)
    monkeypatch.setattr(stage.Loop, "run", lambda loop, state: state)
    train(tiny_config({"model.d_ff": 32}), tmp_path)
    note = "taken over from a start that never trained, which differed in config.model.d_ff"
    assert f"note: {note}: 64 -> 32" in capsys.readouterr().out
    assert json.loads((tmp_path / "run.json").read_text())["notes"] == [f"{note}: 64 -> 32"]
    assert json.loads((tmp_path / "config.json").read_text())["model"]["d_ff"] == 32


EXPERTS = {"model.num_experts": 4, "model.expert_dispatch": "dropless"}


def test_start_up_names_what_takes_tokens_to_their_experts(
    tiny_config, monkeypatch, tmp_path, capsys
):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(stage.StartingPoint, "load", stop)  # all is said by then
    with pytest.raises(KeyboardInterrupt):
        train(tiny_config(EXPERTS), tmp_path)
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["experts"].startswith("dropless: tokens in blocks by expert")
    assert f"experts: {report['experts']}" in capsys.readouterr().out


def test_open_source_needs_sources(tiny_config):
    config = tiny_config()
    empty = dataclasses.replace(config, data=dataclasses.replace(config.data, sources={}))
    with pytest.raises(ValueError, match=r"config\.data\.sources is empty"):
        stage.open_source(empty)
    missing = {"x": SourceConfig("nowhere")}
    gone = dataclasses.replace(config, data=dataclasses.replace(config.data, sources=missing))
    with pytest.raises(ValueError, match=r"config\.data\.sources\.x\.path='nowhere'"):
        stage.open_source(gone)


@pytest.mark.parametrize(
    ("step", "has_scores", "owes"),
    [(4, False, True), (4, True, False), (5, False, False), (20, False, True), (0, True, False)],
)
def test_a_start_owes_the_scores_that_a_stop_left_out(tiny_config, step, has_scores, owes):
    config = tiny_config({"loop.eval_every": 4})
    start = StartingPoint("resumed", step=step, has_scores=has_scores)
    assert stage._owes_scores(config, start) is owes


def test_a_run_on_several_stores_keeps_the_card_of_each(tmp_path, tiny_config, tiny_stores):
    stores = {}
    for name in ("a", "b"):
        stores[name] = tmp_path / name
        shutil.copytree(tiny_stores[name], stores[name])
    (stores["a"] / "card.json").write_text('{"made_from": "a"}')

    def card(*names):
        config = tiny_config({})
        sources = {
            n: dataclasses.replace(config.data.sources["a"], path=str(stores[n])) for n in names
        }
        data = dataclasses.replace(config.data, sources=sources)
        return stage._cards(stage.open_source(dataclasses.replace(config, data=data)))

    assert card("a") == b'{"made_from": "a"}'
    assert card("b") is None
    (stores["b"] / "card.json").write_text('{"made_from": "b"}')
    assert json.loads(card("a", "b")) == {
        "sources": {"a": {"made_from": "a"}, "b": {"made_from": "b"}}
    }
