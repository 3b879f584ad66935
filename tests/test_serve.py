"""The command: what it refuses, and that it answers and stops as told."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import jax
import pytest

from jaxtrain import config as config_lib
from jaxtrain import config_program, serve
from jaxtrain.models.parameters import split
from jaxtrain.tokenizer.training import Training
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from tests.runs import ROOT


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, tiny_config):
    path = tmp_path_factory.mktemp("run")
    tokenizer = Training("bpe", 270, num_reserved=0).train(["red fox runs by an old oak " * 5] * 3)
    config = tiny_config({"model.vocab_size": 270, "model.num_mtp_layers": 1})
    params = split(config_program.model_maker(config)(jax.random.key(0))).params
    with Checkpoints(path / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(3, {"params": params}, {"config": config_lib.to_plain(config)})
    tokenizer.save(path)
    return path


def test_it_answers_and_stops_on_sigterm(workdir):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [f"--workdir={workdir}", f"--port={port}", "--draft=mtp"]
    flags += ["--max_len=4096"]  # room for a long answer
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxtrain.serve", *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 240
        while True:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            try:
                urllib.request.urlopen(f"{address}/health").close()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        body = json.dumps({"prompt": "red", "max_tokens": 3}).encode()
        with urllib.request.urlopen(f"{address}/v1/completions", body) as response:
            assert json.load(response)["usage"]["completion_tokens"] >= 1
        with urllib.request.urlopen(f"{address}/health") as response:
            draft = json.load(response)["draft"]
            assert 0 <= draft["accepted_tokens"] <= draft["proposed_tokens"] > 0
        body = json.dumps({"prompt": "red", "max_tokens": 4000, "stream": True}).encode()
        with urllib.request.urlopen(f"{address}/v1/completions", body) as response:
            response.readline()
            process.send_signal(signal.SIGTERM)  # in the middle of an answer
            assert response.read()
        assert process.wait(60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
    said = process.stderr.read()
    assert f"serving jaxtrain on {address}/v1, 8 slots, API key not wanted" in said
    assert re.search(r"^draft: \d+ of \d+ proposed tokens accepted", said, re.MULTILINE)
    assert "Traceback" not in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_a_host_that_others_reach_needs_a_key(monkeypatch, workdir, host):
    monkeypatch.delenv("JAXTRAIN_API_KEY", raising=False)
    monkeypatch.setattr(sys, "argv", ["serve", f"--workdir={workdir}", f"--host={host}"])
    with pytest.raises(ValueError, match="can be reached from other machines"):
        serve.main()


def test_a_port_in_use_is_named_before_a_model_is_loaded(monkeypatch, workdir):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["serve", f"--workdir={workdir}/none", f"--port={port}"])
        with pytest.raises(ValueError, match=f"--port={port} cannot be listened on: Address alre"):
            serve.main()


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70_000, "--port=70000 must be at most 65535"),
        ("no.such.host.invalid", 80, "--port=80 cannot be listened on"),
    ],
)
def test_an_address_that_is_none_is_refused(host, port, message):
    with pytest.raises(ValueError, match=message):
        serve.bind(host, port)


def test_a_missing_server_package_is_named(monkeypatch, workdir):
    monkeypatch.setattr(sys, "argv", ["serve", f"--workdir={workdir}"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"starlette and uvicorn: .* pip install 'jaxtrain"):
        serve.main()
