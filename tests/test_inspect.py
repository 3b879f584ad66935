import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxtrain import inspect
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints

EVERY_STEP = CheckpointConfig(save_every=1, keep_last=9)


def save(directory, step, state, **metadata):
    with Checkpoints(directory, EVERY_STEP) as checkpoints:
        checkpoints.save(step, state, metadata)


@pytest.fixture(scope="module")
def embed():
    return np.random.default_rng(0).standard_normal((16, 4), dtype=np.float32)


@pytest.fixture(scope="module")
def workdir(embed, tmp_path_factory):
    """Steps 10 and 20 written from 8 devices, and a save of step 30 that was cut off."""
    workdir = tmp_path_factory.mktemp("run")
    mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    sharded = jax.device_put(embed, NamedSharding(mesh, P("fsdp")))
    for step, value, loss in ((10, 1.0, 3.5), (20, np.inf, float("nan"))):
        state = {
            "step": jnp.int32(step),
            "params": {"embed": sharded, "w": jnp.array([0.5, value], jnp.float32)},
        }
        metrics = {"eval/loss": loss}
        save(
            workdir / "checkpoints",
            step,
            state,
            config_hash="c0ffee",
            position=step * 8,
            metrics=metrics,
        )
    (workdir / "checkpoints" / "30.orbax-checkpoint-tmp").mkdir()
    return workdir


def run(capsys, *arguments) -> list[str]:
    inspect.main([str(argument) for argument in arguments])
    return capsys.readouterr().out.splitlines()


def row(lines: list[str], start: str) -> list[str]:
    (found,) = (line.split() for line in lines if line.split()[:1] == [start])
    return found


def test_checkpoints_are_listed_with_what_they_belong_to(capsys, workdir):
    lines = run(capsys, workdir)
    assert lines[0].split() == ["step", "size", "whole", "config", "position", "eval/loss"]
    assert row(lines, "10")[3:] == ["yes", "c0ffee", "80", "3.5"]
    assert row(lines, "20")[3:] == ["yes", "c0ffee", "160", "-"]
    assert " ".join(row(lines, "30")[3:]) == "no: the save is under way or was cut off - - -"


def test_leaves_of_the_latest_whole_step_are_shown_with_statistics(capsys, workdir, embed):
    lines = run(capsys, workdir)
    numbers = [f"{x:.4g}" for x in (np.linalg.norm(embed), embed.min(), embed.max())]
    assert " ".join(row(lines, "params.embed")) == (
        f"params.embed float32[16,4] (fsdp) on data=2 fsdp=4 256 B {' '.join(numbers)} 0"
    )
    assert row(lines, "params.w")[-4:] == ["0.5", "0.5", "0.5", "1"]
    assert row(lines, "params") == ["params", "2", "66", "264", "B"]


def test_a_step_can_be_chosen_and_the_checkpoints_directory_given(capsys, workdir):
    lines = run(capsys, workdir / "checkpoints", "--step=10")
    assert row(lines, "params.w")[-4:] == ["1.118", "0.5", "1", "0"]


def test_no_stats_reads_no_leaf(capsys, workdir, monkeypatch):
    monkeypatch.setattr(inspect, "measure", None)
    lines = run(capsys, workdir, "--no_stats")
    assert row(lines, "params.w") == ["params.w", "float32[2]", "one", "device", "8", "B"]


def test_diff_shows_which_leaves_differ_and_by_how_much(capsys, tmp_path):
    save(tmp_path, 1, {"same": np.ones(3), "moved": np.array([3.0, 4.0]), "gone": np.ones(1)})
    save(tmp_path, 2, {"same": np.ones(3), "moved": np.array([3.0, 4.5])})
    lines = run(capsys, tmp_path, "--diff", 1, 2)
    assert row(lines, "moved") == ["moved", "1", "0.5", "0.1", "0"]
    assert row(lines, "gone") == ["gone", "only", "in", "step", "1"]
    assert "1 of 3 leaves are equal bit for bit" in lines
    assert not any(line.split()[:1] == ["same"] for line in lines)


def strict_json(line: str):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_json_is_one_object_on_the_last_line(capsys, workdir):
    result = strict_json(run(capsys, workdir, "--json")[-1])
    assert [(c["step"], c["whole"]) for c in result["checkpoints"]] == [
        (10, True),
        (20, True),
        (30, False),
    ]
    assert result["checkpoints"][0]["metrics"] == {"eval/loss": 3.5}
    assert result["checkpoints"][1]["metrics"] == {"eval/loss": None}
    assert result["step"] == 20
    (leaf,) = (leaf for leaf in result["leaves"] if leaf["path"] == "params.w")
    assert leaf == {
        "path": "params.w",
        "shape": [2],
        "dtype": "float32",
        "num_bytes": 8,
        "sharding": "one device",
        "key_impl": None,
        "norm": 0.5,
        "min": 0.5,
        "max": 0.5,
        "non_finite": 1,
    }


def test_json_of_a_diff_has_every_leaf(capsys, workdir):
    result = strict_json(run(capsys, workdir, "--diff", 10, 20, "--json")[-1])
    assert result["diff"] == [10, 20]
    assert {leaf["path"]: leaf["equal"] for leaf in result["leaves"]} == {
        "params.embed": True,
        "params.w": False,
        "step": False,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], r"nowhere is not a directory; give a workdir or its checkpoints/"),
        ([], r"holds no checkpoints"),
        (["run", "--step=11"], r"step 11 in .* does not exist; whole ones are 10, 20"),
        (["run", "--step=30"], r"step 30 in .* is not whole \(the save is .*whole ones are 10, 20"),
        (["run", "--diff", "10", "30"], r"step 30 in .* is not whole"),
        (["cut off"], r"no whole checkpoint \(3.orbax-checkpoint-tmp: the save is under way"),
    ],
)
def test_errors_are_one_line_and_nothing_else_is_printed(
    capsys, tmp_path, workdir, arguments, message
):
    (tmp_path / "run").symlink_to(workdir)
    (tmp_path / "cut off" / "3.orbax-checkpoint-tmp").mkdir(parents=True)
    directory, *rest = arguments or ["."]
    with pytest.raises(ValueError, match=message) as error:
        run(capsys, tmp_path / directory, *rest)
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""


def start(code: str, *arguments: str, **kwargs):
    root = os.path.dirname(os.path.dirname(inspect.__file__))
    return subprocess.run(
        [sys.executable, *code.split(maxsplit=1), *arguments],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        **kwargs,
    )


def test_a_failing_command_says_so_without_a_traceback(workdir):
    done = start("-m jaxtrain.inspect", str(workdir), "--step=11")
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("error: checkpoint of step 11")
    assert done.stderr.count("\n") == 1


def test_inspection_works_where_jax_orbax_and_flax_cannot_be_imported(workdir):
    code = (
        "-c import sys; sys.modules.update(dict.fromkeys(['jax', 'orbax', 'flax', 'optax']));"
        "from jaxtrain import inspect; inspect.main(sys.argv[1:])"
    )
    done = start(code, str(workdir), check=True)
    assert row(done.stdout.splitlines(), "params.embed")[2:6] == [
        "(fsdp)",
        "on",
        "data=2",
        "fsdp=4",
    ]


def test_a_reader_that_stops_early_ends_it_quietly(workdir):
    root = os.path.dirname(os.path.dirname(inspect.__file__))
    command = f"{sys.executable} -m jaxtrain.inspect {workdir} | head -n 1"
    done = subprocess.run(
        command, shell=True, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True
    )
    assert done.stdout.split()[:2] == ["step", "size"]
    assert done.stderr == ""


RSS_GROWTH = r"""-c
import contextlib, io, pathlib, re, sys
from jaxtrain import inspect

def peak_bytes():  # of this process alone: ru_maxrss starts at the peak of the one that started it
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

directory, *large = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()):
    inspect.main([directory, "--step=1"])
    before = peak_bytes()
    inspect.main([directory, *large])
print(peak_bytes() - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Step 1 is small; steps 2 and 3 have a leaf of 400 MB, written from one device."""
    directory = tmp_path_factory.mktemp("large")
    leaf = np.random.default_rng(0).random((1000, 100_000), np.float32)
    save(directory, 1, {"leaf": np.ones(3, np.float32)})
    save(directory, 2, {"leaf": leaf})
    leaf[500, 500] += 1
    save(directory, 3, {"leaf": leaf})
    return directory


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("arguments", [["--step=2"], ["--diff", "2", "3"]])
def test_memory_grows_by_less_than_a_leaf(large, arguments):
    done = start(RSS_GROWTH, str(large), *arguments, check=True)
    assert int(done.stdout) < 400_000_000
