"""The launcher: what it refuses, what a run leaves, and that it resumes exactly."""

import dataclasses
import json

import numpy as np
import pytest

from jaxtrain import config as config_lib
from jaxtrain import sft, stage_checks
from jaxtrain.chat.render import render_prompt
from jaxtrain.chat.source import TEMPLATE_FILE
from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.data.store import Store
from jaxtrain.export import export
from jaxtrain.run_config import RunConfig
from jaxtrain.serving.model import from_workdir
from jaxtrain.train.checkpoint_read import open_leaf, read_record
from tests.chat_runs import ROWS, SFT_RUN, make_store, save_base
from tests.chats import VOCAB_SIZE
from tests.runs import read_metrics


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("base")
    save_base(workdir)
    return workdir


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("chats"))


@pytest.fixture(scope="module")
def start(base, store):
    """Runs the launcher on a workdir."""

    def run(workdir, *flags):
        with pytest.MonkeyPatch.context() as patch:
            given = {"data.sources.chat.path": store, "init.from": base}
            flags = [*(f"--config.{key}={value}" for key, value in given.items()), *flags]
            argv = ["sft", f"--config={SFT_RUN}", f"--workdir={workdir}", *flags]
            patch.setattr("sys.argv", argv)
            sft.main()
        return workdir

    return run


@pytest.fixture(scope="module")
def straight(start, tmp_path_factory):
    """Six steps without interruption."""
    return start(tmp_path_factory.mktemp("straight"))


def leaves(workdir, step):
    directory = workdir / "checkpoints"
    return {
        path: open_leaf(directory, step, path).read().result()
        for path in read_record(directory, step).leaves
    }


def test_losses_fall_and_metrics_tell_trained_tokens_from_all(straight, store):
    lines = [line for line in read_metrics(straight) if "loss" in line]
    losses = [line["loss"] for line in lines]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 6
    # A batch is eight rows of the plan; its tokens and targets are whole conversations'.
    for line in lines:
        assert line["batch_positions"] == 8 * 48
        assert 0 < line["target_weight"] < line["batch_tokens"] < line["batch_positions"]
    assert "trained" in json.loads((straight / "run.json").read_text())["data"]
    assert Store(store).num_targets == sum(len(row["messages"][1]["content"]) + 1 for row in ROWS)


def test_a_run_that_stops_and_goes_on_is_the_run_that_did_not(start, straight, tmp_path):
    start(tmp_path, "--config.loop.num_steps=3")
    start(tmp_path)
    first, second = leaves(straight, 6), leaves(tmp_path, 6)
    assert first.keys() == second.keys()
    for path in first:
        np.testing.assert_array_equal(first[path], second[path], err_msg=path)


def test_workdir_has_what_chatting_needs_and_reads_prompts_as_they_were_trained(straight, store):
    model = from_workdir(straight)
    tokenizer = model.tokenizer
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert {tokenizer.control_id("<|end|>"), tokenizer.control_id("eos")} == set(model.end_ids)
    prompt = render_prompt(ROWS[0]["messages"][:1], model.chat(), model.codec).ids
    read = np.empty(len(prompt), np.uint32)
    Store(store).read(*(np.array([n], np.int64) for n in (0, len(prompt), 0)), read)
    np.testing.assert_array_equal(read, prompt)


def test_export_has_the_template_and_ends_answers_with_its_turns(straight, store, tmp_path):
    export(straight, None, tmp_path / "out")
    template = (tmp_path / "out" / TEMPLATE_FILE).read_bytes()
    assert template == Store(store).companion(TEMPLATE_FILE)
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert set(generation["eos_token_id"]) == set(from_workdir(straight).end_ids)


@pytest.mark.parametrize("name", ["tiny.py", "chat.py"])
def test_config_files_are_of_the_model_that_they_start_from(root_dir, straight, name):
    argument = f":{straight}" if name == "chat.py" else ""
    file = f"{root_dir / 'configs' / 'sft' / name}{argument}"
    config = config_lib.resolve(RunConfig, config_lib.load(RunConfig, file))
    model = {"tiny.py": root_dir / "configs/pretrain/tiny.py", "chat.py": SFT_RUN}[name]
    expected = config_lib.resolve(RunConfig, config_lib.load(RunConfig, str(model)))
    assert config.model == expected.model
    assert (config.init.load, config.data.packing) == ("params", "best_fit")
    assert config.init.from_ == (str(straight) if argument else "runs/quickstart/pretrain")


def test_a_run_can_start_from_one(start, straight, tmp_path):
    start(tmp_path, f"--config.init.from={straight}", "--config.loop.num_steps=1")
    (line,) = [line for line in read_metrics(tmp_path) if "loss" in line]
    assert line["loss"] < read_metrics(straight)[0]["loss"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.init.from=None"], "config.init.from is not set; this stage starts from a"),
        (["--config.init.load=state"], "config.init.load=state would go on with the schedule"),
        (["--config.data.packing=concat"], "packing='concat' they would see each other"),
        (["--config.data.seq_len=8"], "rows of config.data.seq_len=8 would cut 8 of 8"),
    ],
)
def test_a_config_that_cannot_run_is_refused(start, tmp_path, flags, message):
    with pytest.raises(ValueError, match="config") as error:
        start(tmp_path / "run", *flags)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_plain_text_alone_is_refused(start, tmp_path, tiny_stores):
    flags = [f"--config.data.sources.chat.path={tiny_stores['a']}", "--config.model.vocab_size=64"]
    with pytest.raises(ValueError, match="holds no conversations, only plain text"):
        start(tmp_path / "run", *flags)


def test_a_base_of_another_tokenizer_is_refused(start, tmp_path):
    save_base(tmp_path / "base", tokenizer_sha256="x" * 64)
    with pytest.raises(ValueError, match="chat was made with the tokenizer"):
        start(tmp_path / "run", f"--config.init.from={tmp_path / 'base'}")


def test_stores_of_two_templates_are_refused_together(tmp_path, store):
    source = "{% for m in messages %}<|bos|>{{ m.role }}{{ m.content }}<|eos|>{% endfor %}"
    (tmp_path / "template.jinja").write_text(source)
    other = make_store(tmp_path, template=str(tmp_path / "template.jinja"))
    sources = {"a": SourceConfig(store), "b": SourceConfig(other)}
    config = DataConfig(sources=sources, seq_len=64, packing="best_fit")
    with pytest.raises(
        ValueError, match=r"different chat templates \(sources.a \w{12}, sources.b \w{12}\)"
    ):
        stage_checks.check_conversations(Loader(config, 0), {})
    alone = dataclasses.replace(config, sources={"b": sources["b"]})
    stage_checks.check_conversations(Loader(alone, 0), {})
