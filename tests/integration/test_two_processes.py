"""Two real processes over gloo are one process."""

import json
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.data.store import Tokenization
from jaxtrain.data.writer import PartWriter, create
from jaxtrain.train.checkpoint_read import whole_steps
from tests.integration.test_resume import assert_same_run, losses, wait_for
from tests.runs import Launcher
from tests.train import stand_in


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_pair(launcher, workdir, *flags, devices=1):
    """Two processes of one run, coordinated on a free port of this machine."""
    port = free_port()
    return [
        launcher.start(
            f"--workdir={workdir}",
            *flags,
            devices=devices,
            JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{port}",
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(index),
        )
        for index in range(2)
    ]


def finish(processes):
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return outputs


@pytest.fixture(scope="module")
def alone(tmp_path_factory, tiny_flags):
    """The run in one process on one device."""
    workdir = tmp_path_factory.mktemp("alone")
    Launcher(tiny_flags).run(f"--workdir={workdir}")
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "devices"), [([], 1), (["--config.mesh.data=1", "--config.mesh.fsdp=0"], 1)], ids=str
)
def test_two_processes_train_as_one(alone, launcher, tmp_path, flags, devices):
    outputs = finish(start_pair(launcher, tmp_path, *flags, devices=devices))
    assert "in 2 process(es)" in outputs[0]
    assert_same_run(alone, tmp_path, 20, rtol=1e-5)


EXPERTS = (
    "--config.model.num_experts=4", "--config.model.num_experts_per_token=2",
    "--config.model.d_ff_expert=16", "--config.model.router_balance_weight=0.01",
    "--config.model.router_balance_over=batch", "--config.loop.num_steps=3",
    "--config.optim.warmup_steps=1",
)  # fmt: skip


@pytest.mark.slow
def test_tokens_that_travel_between_two_processes_are_trained_as_in_one(
    launcher, tiny_flags, tmp_path
):
    """Half of the experts in each, without drops; against all of them on every token."""
    alone, both = tmp_path / "alone", tmp_path / "both"
    Launcher(tiny_flags).run(f"--workdir={alone}", *EXPERTS)
    spread = ("--config.mesh.data=1", "--config.mesh.expert=2")
    finish(start_pair(launcher, both, *EXPERTS, *spread, "--config.model.expert_dispatch=dropless"))
    assert_same_run(alone, both, 3, rtol=1e-5)


@pytest.mark.slow
def test_two_processes_stop_together_and_one_goes_on_from_there(alone, launcher, tmp_path):
    processes = start_pair(launcher, tmp_path)
    wait_for(lambda: (tmp_path / "metrics.jsonl").exists() and len(losses(tmp_path)) >= 3,
             processes[0])  # fmt: skip
    processes[1].send_signal(signal.SIGTERM)  # one is told, both stop at the same step
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [143, 143], "\n".join(outputs)
    assert max(losses(tmp_path)) in whole_steps(tmp_path / "checkpoints")
    launcher.run(f"--workdir={tmp_path}")
    assert_same_run(alone, tmp_path, 20, rtol=1e-5)


TRAIN = """
import json, sys
from jaxtrain.parallel import processes
processes.initialize()
import jax
from jax.experimental import multihost_utils
from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.data.store import Tokenization
from jaxtrain.data.writer import PartWriter, create
from tests.train import stand_in

sources = {"a": SourceConfig(sys.argv[1])}
loader = Loader(DataConfig(sources, batch_size=8, seq_len=stand_in.T, packing="concat"), seed=0)
program = stand_in.program(jax.device_count())
state = program.init()
rows, losses = [], []
for step in range(3):
    batch = program.put(loader.batch(step, program.local_rows(8)), 8)
    everything = multihost_utils.process_allgather(batch.inputs, tiled=True)
    rows.append(everything[:, 0].tolist())
    state, metrics = program.train_step(state, {}, batch)
    losses.append(float(metrics["loss"]))
print(json.dumps({"rows": rows, "losses": losses, "hosts": jax.process_count()}))
"""


@pytest.fixture(scope="module")
def sixteen_rows(tmp_path_factory):
    """A store of documents of one row each, which the first token numbers."""
    path = str(tmp_path_factory.mktemp("store"))
    rng = np.random.default_rng(0)
    tokenization = Tokenization(stand_in.V, {}, "t" * 64, {})
    with PartWriter(path, tokenization) as writer:
        for row in range(stand_in.V):
            ids = [row, *rng.integers(stand_in.V, size=stand_in.T - 1)]
            writer.add(ids, document_id=str(row), source="s", num_text_bytes=stand_in.T)
    create(path, tokenization, "t" * 64, writer.parts)
    return path


@pytest.mark.slow
def test_rows_on_the_devices_of_two_processes_are_those_of_one(launcher, sixteen_rows):
    """LDR-15: two processes of two devices and one of one device, after the rows were placed."""
    command = [sys.executable, "-c", TRAIN, sixteen_rows]

    def start(devices, **variables):
        return subprocess.Popen(
            command, env=launcher.environment(devices, **variables), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": "2"}
    started = [start(1), *(start(2, **address, JAX_PROCESS_ID=index) for index in "01")]
    outputs = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outputs
    one, *both = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    assert (one["hosts"], both[0]["hosts"], both[1]["hosts"]) == (1, 2, 2)
    for host in both:
        assert host["rows"] == one["rows"]
        np.testing.assert_allclose(host["losses"], one["losses"], rtol=1e-6)
    assert [len(set(rows)) for rows in one["rows"]] == [8, 8, 8]
    assert sorted(one["rows"][0] + one["rows"][1]) == list(range(16))  # an epoch


def test_rows_of_two_hosts_are_the_batch_without_repeats(tiny_stores):
    config = DataConfig(
        sources={"a": SourceConfig(tiny_stores["a"])}, batch_size=8, seq_len=32, packing="concat"
    )
    loader = Loader(config, seed=0)
    whole = loader.batch(3)
    halves = [loader.batch(3, rows) for rows in (slice(0, 4), slice(4, 8))]
    for name, array in whole._asdict().items():
        joined = np.concatenate([getattr(half, name) for half in halves])
        np.testing.assert_array_equal(array, joined)
    assert len({row.tobytes() for row in whole.inputs}) == 8
