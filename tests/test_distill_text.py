"""The command: prompts in, rows to fine-tune on out, from a model here or a server's."""

import json
import socket
import sys
import threading
import time

import jax
import pytest

from jaxtrain import config as config_lib
from jaxtrain import config_program, distill_text, tokenize
from jaxtrain.chat.source import TEMPLATE_FILE, teach
from jaxtrain.models.parameters import split
from jaxtrain.serving import app
from jaxtrain.serving.model import from_workdir
from jaxtrain.serving.worker import Worker
from jaxtrain.tokenizer.training import Training
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from tests.serving.stand_in_server import fault, said, serve

PROMPTS = [
    {"prompt": "red", "id": "x"},
    {"messages": [{"role": "user", "content": "fox"}]},
    {"prompt": "an old oak"},
]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, tiny_config):
    """An untrained model with a tokenizer and a template, as a run leaves it."""
    path = tmp_path_factory.mktemp("run")
    learnt = Training("bpe", 270, num_reserved=0).train(["red fox runs by an old oak " * 5] * 3)
    tokenizer, source = teach(learnt, "seed")
    config = tiny_config({"model.vocab_size": tokenizer.vocab_size})
    params = split(config_program.model_maker(config)(jax.random.key(0))).params
    with Checkpoints(path / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(3, {"params": params}, {"config": config_lib.to_plain(config)})
    tokenizer.save(path)
    (path / TEMPLATE_FILE).write_text(source)
    return path


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return path


@pytest.fixture
def run(monkeypatch, capsys, source, tmp_path):
    """Runs the command; returns what it printed."""

    def command(*flags, output="rows.jsonl") -> str:
        files = [f"--input={source}", f"--output={tmp_path / output}"]
        monkeypatch.setattr(sys, "argv", ["distill_text", *files, *map(str, flags)])
        distill_text.main()
        return capsys.readouterr().out

    return command


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_of_a_model_here_are_read_by_the_tokenizer_at_once(
    run, workdir, tmp_path, monkeypatch, capsys
):
    flags = (f"--workdir={workdir}", "--num_samples=2", "--max_new_tokens=6", "--keep_cut")
    printed = run(*flags)
    rows = read(tmp_path / "rows.jsonl")
    left_out = tmp_path / "rows.jsonl.left_out"  # empty answers, of an untrained model
    num_left_out = len(read(left_out)) if left_out.exists() else 0
    assert len(rows) + num_left_out == 6
    assert printed.startswith(f"wrote {tmp_path / 'rows.jsonl'}: {len(rows)} rows of 6 answers")
    assert rows[0]["id"] == "x"
    for row in rows:
        assert row["teacher"]["model"] == f"{workdir} step 3"
        assert len(row["teacher"]["weights"]) == 64
        assert row["sampling"]["seed"] == row["sample"]
        assert (row["sampling"]["temperature"], row["sampling"]["max_new_tokens"]) == (1.0, 6)
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    files = [f"--input={tmp_path / 'rows.jsonl'}", f"--tokenizer={workdir}"]
    out = f"--out={tmp_path / 'store'}"
    monkeypatch.setattr(sys, "argv", ["tokenize", "chat", *files, out])
    tokenize.main()
    assert f"{len(rows)} rows in" in capsys.readouterr().out.replace("\n", " ")


def test_a_run_that_was_killed_goes_on_to_the_same_rows(run, workdir, tmp_path, monkeypatch):
    flags = (f"--workdir={workdir}", "--num_samples=2", "--max_new_tokens=6", "--keep_cut")
    run(*flags)
    whole_answers = distill_text.whole_answers

    def stopped(*arguments):
        for number, answer in enumerate(whole_answers(*arguments)):
            if number == 3:
                raise KeyboardInterrupt
            yield answer

    monkeypatch.setattr(distill_text, "whole_answers", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(*flags, output="cut.jsonl")
    assert not (tmp_path / "cut.jsonl").exists()
    monkeypatch.setattr(distill_text, "whole_answers", whole_answers)
    message = r"other prompts or settings \(sampling\.temperature\); give another"
    with pytest.raises(ValueError, match=message):
        run(*flags, "--temperature=0.5", output="cut.jsonl")
    run(*flags, output="cut.jsonl")
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "rows.jsonl").read_bytes()


def test_other_weights_in_the_same_place_are_not_gone_on_with(run, workdir, monkeypatch):
    flags = (f"--workdir={workdir}", "--max_new_tokens=4", "--keep_cut")

    def stopped(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(distill_text, "whole_answers", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(*flags)
    monkeypatch.setattr(distill_text.TextModel, "weights_hash", lambda self: "0" * 64)
    with pytest.raises(ValueError, match=r"settings \(teacher\.weights\)"):
        run(*flags)


def test_plain_prompts_are_gone_on_with(run, workdir, source, tmp_path):
    source.write_text(json.dumps({"prompt": "red"}) + "\n")
    run(f"--workdir={workdir}", "--plain", "--max_new_tokens=4", "--keep_cut", "--temperature=0")
    (row,) = read(tmp_path / "rows.jsonl")
    assert row["text"].startswith("red")
    assert len(row["text"]) > len("red")


@pytest.fixture(scope="module")
def our_server(workdir):
    """Its address."""
    uvicorn = pytest.importorskip("uvicorn")
    model = from_workdir(workdir)
    worker = Worker(model, model.engine(max_len=64, num_slots=4, chunk=4), max_waiting=500)
    made = app.make_app(model, "fox", worker, app.Limits(64, 20_000, None))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(made, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


def test_our_own_server_is_a_teacher(our_server, run, workdir, tmp_path):
    flags = ("--max_new_tokens=6", "--keep_cut", "--num_samples=2", "--top_k=9", "--seed=4")
    run(f"--server={our_server}", "--model=fox", *flags)
    run(f"--workdir={workdir}", *flags, output="here.jsonl")
    there, here = read(tmp_path / "rows.jsonl"), read(tmp_path / "here.jsonl")
    assert [row["messages"] for row in there] == [row["messages"] for row in here]
    assert there[0]["teacher"] == {"model": "fox", "server": our_server, "served_model": "fox"}
    assert there[1]["sampling"] == {
        "temperature": 1.0, "top_p": 1.0, "max_tokens": 6, "seed": 5, "top_k": 9,
    }  # fmt: skip


def test_a_server_that_fails_at_times_loses_no_row(run, tmp_path, monkeypatch):
    monkeypatch.setattr(distill_text.ChatServer.__init__, "__kwdefaults__", {
        "timeout_secs": 5.0, "wait_secs": 0.01,
    })  # fmt: skip
    monkeypatch.setenv("TEACHER_KEY", "secret")

    def reply(body, before):
        text = body["messages"][-1]["content"]
        if text == "fox":
            return fault(400, "no foxes")
        return said(f"{text} {body['seed']}") if before else fault(500)

    with serve(reply) as server:
        flags = (f"--server={server.url}", "--model=m", "--api_key_env=TEACHER_KEY")
        printed = run(*flags, "--num_samples=2", '--request={"top_p": null, "user": "me"}')
    rows = read(tmp_path / "rows.jsonl")
    assert [row["messages"][-1]["content"] for row in rows] == [
        "red 0", "red 1", "an old oak 0", "an old oak 1",
    ]  # fmt: skip
    assert {key for body in server.requests for key in body} == {
        "model", "messages", "temperature", "max_tokens", "seed", "user",
    }  # fmt: skip
    assert set(server.keys) == {"Bearer secret"}
    assert "secret" not in (tmp_path / "rows.jsonl").read_text()
    left_out = read(tmp_path / "rows.jsonl.left_out")
    assert [row["answer"]["refused"] for row in left_out] == ["400 Bad Request: no foxes"] * 2
    assert "4 rows of 6 answers\n  left out: 2 refused by the server" in printed


def test_questions_without_an_answer_are_asked_again_or_given_up(run, tmp_path, monkeypatch):
    monkeypatch.setattr(distill_text.ChatServer.__init__, "__kwdefaults__", {
        "timeout_secs": 5.0, "wait_secs": 1e-4,
    })  # fmt: skip
    is_broken = True

    def reply(body, before):
        text = body["messages"][-1]["content"]
        return fault(503, "overloaded") if is_broken and text != "red" else said(text)

    with serve(reply) as server:
        flags = (f"--server={server.url}", "--model=m")
        message = r"2 of 3 questions have no answer yet \(503 .*overloaded\); start again to ask"
        with pytest.raises(ValueError, match=message):
            run(*flags)
        assert not (tmp_path / "rows.jsonl").exists()
        run(*flags, "--give_up", output="other.jsonl")
        assert [row["reason"] for row in read(tmp_path / "other.jsonl.left_out")] == [
            "given up", "given up",
        ]  # fmt: skip
        is_broken, asked = False, len(server.requests)
        run(*flags)
        assert len(server.requests) == asked + 2
    assert len(read(tmp_path / "rows.jsonl")) == 3


def test_rows_of_nothing_are_not_written(run, tmp_path):
    with (
        serve(lambda body, before: said("so long", "length")) as server,
        pytest.raises(ValueError, match="no answer can be trained on: 0 rows of 3 answers,"),
    ):
        run(f"--server={server.url}", "--model=m")
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give a teacher: --workdir, or --model, or --server and --model"),
        (["--workdir=a", "--model=b"], "give a teacher: --workdir, or --model, or"),
        (["--server=http://a/v1"], "of a --server, --model says which"),
        (["--server=http://a/v1", "--model=m", "--plain"], "--plain is of a model here"),
        (["--server=http://a/v1", "--model=m", "--step=2"], "--step is of a model that is loaded"),
        (["--workdir=a", "--api_key_env=B"], "--api_key_env is of a --server"),
        (
            ["--server=http://a/v1", "--model=m", "--api_key_env=NO_SUCH_KEY"],
            "--api_key_env=NO_SUCH_KEY: there is no such environment variable",
        ),
        (["--server=a", "--model=m"], "--server=a must be an address"),
    ],
)
def test_impossible_flags_are_refused(run, flags, message):
    with pytest.raises(ValueError, match=message):
        run(*flags)


def test_a_row_that_cannot_be_asked_is_named_before_any_is(run, source):
    source.write_text('{"prompt": "a"}\n{"messages": [{"role": "assistant", "content": "b"}]}\n')
    with serve(lambda body, before: said("hi")) as server:
        with pytest.raises(ValueError, match=r"prompts\.jsonl, prompt 2: messages must end with"):
            run(f"--server={server.url}", "--model=m")
        assert not server.requests
