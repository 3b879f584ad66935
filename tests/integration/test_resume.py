"""A run that is interrupted is the run that was not."""

import random
import signal
import time

import numpy as np
import pytest

from jaxtrain.train.checkpoint_read import open_leaf, read_record, whole_steps
from tests.runs import Launcher, read_metrics


def leaves(workdir, step):
    """Every leaf of a checkpoint by path."""
    directory = workdir / "checkpoints"
    return {
        path: open_leaf(directory, step, path).read().result()
        for path in read_record(directory, step).leaves
    }


def losses(workdir):
    return {line["step"]: line["loss"] for line in read_metrics(workdir) if "loss" in line}


def assert_same_run(first, second, step, rtol=0.0):
    """Equal states at `step` (bit for bit where rtol is 0) and equal losses at every step."""
    a, b = leaves(first, step), leaves(second, step)
    assert a.keys() == b.keys()
    for path in a:
        if rtol:
            scale = np.abs(a[path]).max() if a[path].size else 0
            np.testing.assert_allclose(a[path], b[path], rtol=rtol, atol=rtol * scale, err_msg=path)
        else:
            np.testing.assert_array_equal(a[path], b[path], err_msg=path)
    assert list(losses(first).values()) == pytest.approx(list(losses(second).values()), rel=rtol)
    assert losses(first).keys() == losses(second).keys() == set(range(1, step + 1))


@pytest.fixture(scope="module")
def straight(tmp_path_factory, tiny_flags):
    """20 steps without interruption."""
    workdir = tmp_path_factory.mktemp("straight")
    Launcher(tiny_flags).run(f"--workdir={workdir}")
    return workdir


def wait_for(condition, process, secs=120):
    """Polls until the condition holds or the process ends."""
    end = time.time() + secs
    while not condition() and process.poll() is None:
        assert time.time() < end
        time.sleep(0.01)


def test_kill_and_resume_equals_the_uninterrupted_run_bit_for_bit(straight, launcher, tmp_path):
    process = launcher.start(f"--workdir={tmp_path}")
    wait_for(lambda: 7 in whole_steps(tmp_path / "checkpoints"), process)
    process.kill()
    process.wait()
    assert "resumed at step" in launcher.run(f"--workdir={tmp_path}")
    assert_same_run(straight, tmp_path, 20)


def test_resume_on_another_mesh_equals_to_1e_5(straight, launcher, tmp_path):
    process = launcher.start(f"--workdir={tmp_path}")
    wait_for(lambda: 7 in whole_steps(tmp_path / "checkpoints"), process)
    process.kill()
    process.wait()
    out = launcher.run(
        f"--workdir={tmp_path}", "--config.mesh.data=2", "--config.mesh.fsdp=2", devices=4
    )
    assert "changed since this workdir was last used: config.mesh.data: 0 -> 2" in out
    assert_same_run(straight, tmp_path, 20, rtol=1e-5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_says_so_and_resumes_exactly(straight, launcher, tmp_path, number):
    process = launcher.start(f"--workdir={tmp_path}")
    metrics = tmp_path / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and len(losses(tmp_path)) >= 3, process)
    process.send_signal(number)
    out, _ = process.communicate()
    assert process.returncode == 128 + number
    step = max(losses(tmp_path))
    assert f"stopped by {number.name} at step {step}; saved; start again" in out
    assert step in whole_steps(tmp_path / "checkpoints")
    launcher.run(f"--workdir={tmp_path}")
    assert_same_run(straight, tmp_path, 20)


@pytest.mark.slow
def test_kills_at_random_moments_never_lose_a_run(launcher, tmp_path):
    """Ten kills, any time after training has begun, saves included; then to the end."""
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    flags = ["--config.loop.num_steps=300", "--config.checkpoint.save_every=2"]
    metrics, moments = killed / "metrics.jsonl", random.Random(0)
    for _ in range(10):
        started = time.time_ns()
        process = launcher.start(f"--workdir={killed}", *flags)
        wait_for(lambda: metrics.exists() and metrics.stat().st_mtime_ns > started, process)  # noqa: B023
        time.sleep(moments.uniform(0, 0.5))
        process.kill()
        out, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, out
    launcher.run(f"--workdir={killed}", *flags)
    launcher.run(f"--workdir={straight}", *flags)
    assert_same_run(straight, killed, 300)
