"""What kills, damage and failing disks leave behind."""

import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from jaxtrain.train import checkpoint
from jaxtrain.train.checkpoint import CheckpointConfig, CheckpointError, Checkpoints, restore
from jaxtrain.train.checkpoint_read import whole_steps

EVERY_STEP = CheckpointConfig(save_every=1, keep_last=100)


def make_state(step: int) -> dict[str, Any]:
    return {"w": jnp.full((64, 64), step, jnp.float32), "step": jnp.int32(step)}


def save(directory: pathlib.Path, step: int) -> None:
    with Checkpoints(directory, EVERY_STEP) as checkpoints:
        checkpoints.save(step, make_state(step), {"position": step})


def assert_holds(directory: pathlib.Path, step: int) -> None:
    """The state of that step is whole and right."""
    sharding = SingleDeviceSharding(jax.devices()[0])
    wanted = {
        "w": jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=sharding),
        "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding),
    }
    restored = restore(directory, step, wanted)
    np.testing.assert_array_equal(restored["w"], np.full((64, 64), step, np.float32))
    assert restored["step"] == step


@pytest.mark.parametrize("name", ["4.orbax-checkpoint-tmp", "9.orbax-checkpoint-tmp", "3.deleting"])
def test_left_over_folders_are_ignored_then_removed_and_their_step_is_saved(tmp_path, name):
    """CKP-08: what a kill during a save or a deletion leaves."""
    save(tmp_path, 3)
    (tmp_path / name / "state").mkdir(parents=True)
    (tmp_path / name / "state" / "part").write_text("half")
    with Checkpoints(tmp_path, EVERY_STEP) as checkpoints:
        assert checkpoints.steps() == [3]
        checkpoints.save(4, make_state(4), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]
    assert_holds(tmp_path, 4)


@pytest.mark.parametrize("part", ["run/metadata.json", "state/manifest.ocdbt"])
def test_a_damaged_checkpoint_is_passed_over_and_saved_again(tmp_path, part):
    save(tmp_path, 3)
    save(tmp_path, 4)
    (tmp_path / "4" / part).unlink()
    with Checkpoints(tmp_path, EVERY_STEP) as checkpoints:
        assert checkpoints.latest() == 3
        checkpoints.save(4, make_state(4), {})
    assert_holds(tmp_path, 4)


def spoil_format(path):
    record = path / "run" / "metadata.json"
    record.write_text(record.read_text().replace('"format": 1', '"format": 2'))


def spoil_access(path):
    record = path / "run" / "metadata.json"
    record.unlink()
    record.symlink_to(record)  # any access fails, for root too


def spoil_json(path):
    (path / "run" / "metadata.json").write_text('{"format": ')


@pytest.mark.parametrize("spoil", [spoil_format, spoil_access])
def test_a_checkpoint_that_cannot_be_read_is_never_replaced(tmp_path, spoil):
    save(tmp_path, 3)
    save(tmp_path, 4)
    spoil(tmp_path / "4")
    before = sorted(tmp_path.rglob("*"))
    with (
        Checkpoints(tmp_path, EVERY_STEP) as checkpoints,
        pytest.raises(CheckpointError, match=r"step 4 was not written .* is not replaced"),
    ):
        checkpoints.save(4, make_state(4), {})
    assert sorted(tmp_path.rglob("*")) == before
    save(tmp_path, 5)  # nor removed as a leftover
    assert (tmp_path / "4" / "state").is_dir()


def test_a_damaged_checkpoint_is_not_replaced_by_a_run_that_resumed_from_none(tmp_path):
    save(tmp_path, 3)
    spoil_json(tmp_path / "3")
    with pytest.raises(CheckpointError, match="step 3 was not written"):
        save(tmp_path, 3)
    assert (tmp_path / "3" / "state").is_dir()


def test_a_checkpoint_damaged_before_the_newest_whole_one_is_left_alone(tmp_path):
    save(tmp_path, 3)
    save(tmp_path, 4)
    spoil_json(tmp_path / "3")
    save(tmp_path, 5)
    assert (tmp_path / "3" / "state").is_dir()


def test_a_half_written_metadata_file_is_not_whole(tmp_path):
    save(tmp_path, 3)
    path = tmp_path / "3" / "run" / "metadata.json"
    path.write_bytes(path.read_bytes()[:-10])
    assert Checkpoints(tmp_path, EVERY_STEP).latest() is None


def test_other_folders_are_left_alone(tmp_path):
    for name in ("notes", "3.bak", "x7", "07"):
        (tmp_path / name).mkdir()
    (tmp_path / "12").write_text("a file")
    save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "07",
        "12",
        "3",
        "3.bak",
        "notes",
        "x7",
    ]


def test_a_deletion_that_is_cut_off_leaves_no_half_of_a_checkpoint(tmp_path, monkeypatch):
    def delete_half(path):
        (path / "state" / "manifest.ocdbt").write_bytes(b"")
        raise OSError("cut off")

    checkpoints = Checkpoints(tmp_path, CheckpointConfig(1, keep_last=1, keep_best=0))
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", delete_half)
        checkpoints.save(2, make_state(2), {})
        with pytest.raises(CheckpointError, match=r"step 2 is saved, but an older one .* cut off"):
            checkpoints.wait()
    assert checkpoints.steps() == [2]
    assert_holds(tmp_path, 2)


WRITER = """
import itertools, pathlib, sys
import jax.numpy as jnp
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints

checkpoints = Checkpoints({directory!r}, CheckpointConfig(save_every=1, keep_last=2, keep_best=0))
for step in itertools.count((checkpoints.latest() or 0) + 1):
    state = {{"w": jnp.full((64, 64), step, jnp.float32), "step": jnp.int32(step)}}
    checkpoints.save(step, state, {{"position": step}})
"""


def kill_while_saving(directory: pathlib.Path, moments: list[float]) -> None:
    """Kills a process that saves without pause, each time somewhere in its second or later save."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jaxtrain.train.checkpoint"])
    newest = 0
    for moment in moments:
        writer = context.Process(target=exec, args=(WRITER.format(directory=str(directory)), {}))
        writer.start()
        deadline = time.monotonic() + 60
        reader = Checkpoints(directory, EVERY_STEP)
        while (reader.latest() or 0) <= newest:
            assert writer.is_alive(), "the writer failed"
            assert time.monotonic() < deadline, "the writer saves nothing"
            time.sleep(0.002)
        time.sleep(moment)
        writer.kill()
        writer.join()
        latest = reader.latest()
        assert latest is not None
        assert latest > newest
        for step in reader.steps():
            assert reader.metadata(step) == {"position": step}
            assert_holds(directory, step)
        newest = latest


def test_latest_is_whole_after_a_kill_at_any_moment(tmp_path):
    rng = random.Random(0)
    kill_while_saving(tmp_path, [rng.uniform(0, 0.06) for _ in range(10)])


@pytest.mark.slow
def test_latest_is_whole_after_a_kill_at_many_more_moments(tmp_path):
    rng = random.Random(1)
    kill_while_saving(tmp_path, [rng.uniform(0, 0.06) for _ in range(60)])


FAILING = """
import os, resource, sys
import jax.numpy as jnp, numpy as np
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints

directory, fault = sys.argv[1:]
with Checkpoints(directory, CheckpointConfig(save_every=1)) as checkpoints:
    checkpoints.save(1, {"w": jnp.ones((64, 64)), "step": jnp.int32(1)}, {})
    checkpoints.wait()
    print("saved", checkpoints.newly_saved(), flush=True)
    if fault == "read-only folder":
        os.chmod(directory, 0o555)
        if os.geteuid() == 0:
            os.seteuid(65534)  # root may write anywhere
    elif fault == "file size limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
    noise = np.random.default_rng(0).random(10**6, np.float32)  # 4 MB that compress little
    checkpoints.save(2, {"w": jnp.asarray(noise)}, {})
    checkpoints.wait()
    print("saved", checkpoints.newly_saved(), flush=True)
"""


def run_failing(directory: pathlib.Path, fault: str, *prefix: str):
    root = pathlib.Path(__file__).parents[2]
    return subprocess.run(
        [*prefix, sys.executable, "-c", FAILING, str(directory), fault],
        env={**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def assert_failed_readably(done, directory: pathlib.Path, reason: str) -> None:
    assert done.returncode != 0
    assert done.stdout == "saved [1]\n"
    message = done.stderr.strip().splitlines()[-1]
    assert f"checkpoint of step 2 was not written to {directory}/2" in message
    assert reason in message


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("read-only folder", "Permission denied"), ("file size limit", "File too large")],
)
def test_a_save_that_fails_ends_the_run_and_leaves_earlier_ones_intact(fault, reason):
    """CKP-03: the error names step and path, and nothing is told as saved."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        directory.chmod(0o755)
        done = run_failing(directory, fault)
        directory.chmod(0o755)
        assert_failed_readably(done, directory, reason)
        assert [path.name for path in directory.iterdir()] == ["1"]
        assert_holds(directory, 1)


def test_a_full_disk_ends_the_run_and_leaves_earlier_ones_intact(tmp_path):
    """CKP-03: on a file system of 1 MB, mounted in a namespace where the machine allows it."""
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"']
    try:
        subprocess.run([*mount, str(tmp_path), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine lets nobody mount a file system")
    look = 'exec 3>&1; "$@" >&3; code=$?; ls "$0" >&2; exit $code'
    prefix = [*mount, str(tmp_path), "sh", "-c", look, str(tmp_path)]
    done = run_failing(tmp_path, "full disk", *prefix)
    *message, left = done.stderr.strip().splitlines()
    assert left == "1"
    done.stderr = "\n".join(message)
    assert_failed_readably(done, tmp_path, "No space left on device")


@pytest.mark.parametrize("damage", ["remove", "truncate"])
def test_a_lost_or_shortened_data_file_makes_a_step_damaged(tmp_path, damage):
    with Checkpoints(tmp_path, CheckpointConfig()) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"w": np.arange(1000.0, dtype=np.float32)}, {})
    data = max((tmp_path / "2" / "state").rglob("d/*"), key=lambda file: file.stat().st_size)
    if damage == "remove":
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:-7])
    assert whole_steps(tmp_path) == [1]
