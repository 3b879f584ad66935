"""Two real processes over gloo are one process."""

import signal
import socket

import numpy as np
import pytest

from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.train.checkpoint_read import whole_steps
from tests.integration.test_resume import assert_same_run, losses, wait_for
from tests.runs import Launcher


def start_pair(launcher, workdir, *flags, devices=1):
    """Two processes of one run, coordinated on a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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
