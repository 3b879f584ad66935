"""The shell scripts, with a stand-in for Python that records what it is asked to install."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = [*sorted(ROOT.glob("scripts/*.sh")), ROOT / ".ci" / "run"]

# Answers what the scripts ask: its version, whether that is new enough, a venv, an installation.
FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in
    *print*) echo "{version}" ;;
    *version_info*) {new_enough} ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip "*) echo "$@" >>pip.log ;;
    *) exit 64 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with what scripts/environment.sh reads."""
    for name in ("scripts/environment.sh", "pyproject.toml", "constraints.txt"):
        target = tmp_path / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path / "checkout"


@pytest.fixture
def environment(checkout, tmp_path):
    """Runs environment.sh from another folder; returns (exit code, stdout, stderr)."""

    def run(*extras, **variables):
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "EXTRAS")}
        done = subprocess.run(
            [str(checkout / "scripts" / "environment.sh"), *extras],
            cwd=tmp_path,
            env=kept | variables,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout.strip(), done.stderr

    return run


def _fake_python(folder: pathlib.Path, version: str, new_enough: bool = True) -> str:
    path = folder / f"python{version}"
    answer = "true" if new_enough else "false"
    path.write_text(FAKE_PYTHON.format(version=version, new_enough=answer))
    path.chmod(0o755)
    return str(path)


def _installs(checkout: pathlib.Path) -> list[str]:
    log = checkout / "pip.log"
    return [line.split()[-1] for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_can_be_executed(path):
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


def test_environment_is_made_once_and_each_extra_installed_once(environment, checkout, tmp_path):
    python = _fake_python(tmp_path, "3.11")
    assert environment(PYTHON=python)[:2] == (0, str(checkout / ".venv/bin/python"))
    assert environment(PYTHON=python)[0] == 0
    assert environment("test", PYTHON=python)[0] == 0
    assert environment("test", PYTHON=python, EXTRAS="reference cuda12")[0] == 0
    assert environment("test", PYTHON=python)[0] == 0
    assert _installs(checkout) == [".", ".[test]", ".[test,reference,cuda12]"]


def test_existing_environment_is_used_when_no_interpreter_is_named(environment, checkout, tmp_path):
    environment(PYTHON=_fake_python(tmp_path, "3.12"))
    assert environment()[:2] == (0, str(checkout / ".venv/bin/python"))
    assert _installs(checkout) == ["."]


def test_another_version_gets_an_environment_of_its_own(environment, checkout, tmp_path):
    environment(PYTHON=_fake_python(tmp_path, "3.11"))
    code, python, _ = environment(PYTHON=_fake_python(tmp_path, "3.12"))
    assert (code, python) == (0, str(checkout / ".venv-3.12/bin/python"))
    assert environment()[1] == str(checkout / ".venv/bin/python")


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed_again(environment, checkout, tmp_path, name):
    python = _fake_python(tmp_path, "3.11")
    environment(PYTHON=python)
    with open(checkout / name, "a") as file:
        file.write("# changed\n")
    environment(PYTHON=python)
    assert len(_installs(checkout)) == 2


def test_old_interpreter_is_refused_with_what_to_do(environment, checkout, tmp_path):
    old = _fake_python(tmp_path, "3.10", new_enough=False)
    code, _, message = environment(PYTHON=old)
    assert code == 1
    assert f"needs Python 3.11 or newer and '{old}' is 3.10" in message
    assert "PYTHON=python3.12" in message
    assert not (checkout / ".venv").exists()


def test_missing_interpreter_is_refused_with_what_to_do(environment, checkout):
    code, _, message = environment(PYTHON="no-such-python")
    assert code == 1
    assert message.startswith("error: no Python found as 'no-such-python'; install Python 3.11")
    assert message.count("\n") == 1
    assert not (checkout / ".venv").exists()


def test_failed_installation_is_an_error_and_is_tried_again(environment, checkout, tmp_path):
    python = pathlib.Path(_fake_python(tmp_path, "3.11"))
    python.write_text(python.read_text().replace('echo "$@" >>pip.log', "exit 1"))
    for _ in range(2):
        code, stdout, message = environment(PYTHON=str(python))
        assert (code, stdout) == (1, "")
        assert "the installation failed" in message


def test_slurm_start_runs_the_stage_on_every_task_and_ends_all_when_one_fails(tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    srun = tmp_path / "srun"
    srun.write_text('#!/usr/bin/env bash\necho "$@"; echo "cpus $SRUN_CPUS_PER_TASK"\n')
    for file in (python, srun):
        file.touch()
        file.chmod(0o755)
    slurm = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_CPUS_PER_TASK": "8"}
    done = subprocess.run(
        [str(ROOT / "scripts" / "slurm.sh"), "--config=a.py", "--workdir=/runs/a b"],
        env=os.environ | slurm | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        f"--kill-on-bad-exit=1 {python} -m jaxtrain.pretrain --config=a.py --workdir=/runs/a b",
        "cpus 8",
    ]


def test_slurm_start_outside_of_slurm_says_so():
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    done = subprocess.run(
        [str(ROOT / "scripts" / "slurm.sh")], env=kept, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "start this with sbatch" in done.stderr
