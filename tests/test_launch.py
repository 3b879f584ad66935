import re
import subprocess
import sys

import pytest

from jaxtrain import launch

PROGRAM = '''
"""Says what it does."""
import dataclasses, sys
from jaxtrain import launch
from jaxtrain.options import option

@dataclasses.dataclass(frozen=True)
class Run:
    steps: int = option(3, "Steps.")

def main():
    config, options = launch.parse(Run, launch.parser(__doc__))
    if config.steps == 7:
        {}["fault"]
    if config.steps == 8:
        int("fault of a library")
    if config.steps == 9:
        open("/nowhere/file")
    if config.steps == 10:
        raise KeyboardInterrupt
    print(config, options.config)

launch.run(main)
'''


@pytest.fixture
def start(tmp_path, root_dir):
    program, config = tmp_path / "program.py", tmp_path / "run.py"
    program.write_text(PROGRAM)
    config.write_text(
        "from jaxtrain import config\nimport __main__\n"
        "def get_config():\n    return config.to_config_dict(__main__.Run)\n"
    )

    def run(*arguments):
        return subprocess.run(
            [sys.executable, str(program), *[a.replace("RUN", str(config)) for a in arguments]],
            env={"PYTHONPATH": str(root_dir)}, capture_output=True, text=True,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("flags", [["--config.steps=5"], ["--config.steps", "5"]])
def test_overrides_come_with_or_without_an_equals_sign(start, flags):
    result = start("--config=RUN", *flags)
    assert result.stdout.startswith("Run(steps=5)"), result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=RUN", "--config.stpes=5"], "error: config.stpes is not a known key; did you"),
        (["--config=nowhere.py"], "error: --config=nowhere.py: no such file"),
    ],
)
def test_a_users_error_is_one_line_and_exit_code_2(start, arguments, message):
    result = start(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=RUN", "--confg.steps=5"], "unrecognized argument: --confg.steps=5"),
        (["--config=RUN", "--config.steps"], "--config.steps needs a value"),
        ([], "required: --config"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_names_the_help(start, arguments, message):
    result = start(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert re.fullmatch(r"error: .*; see .* --help\n", result.stderr)


def test_a_file_that_cannot_be_opened_is_one_line(start):
    result = start("--config=RUN", "--config.steps=9")
    assert result.stderr == "error: [Errno 2] No such file or directory: '/nowhere/file'\n"
    assert result.returncode == 2


def test_an_interrupt_is_one_word(start):
    result = start("--config=RUN", "--config.steps=10")
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("steps", [7, 8])
def test_a_fault_keeps_its_traceback(start, steps):
    result = start("--config=RUN", f"--config.steps={steps}")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_help_says_what_the_program_does_and_explains_every_knob(start):
    out = start("--help").stdout
    assert "Says what it does." in out
    assert "  steps: Steps. [3]" in out


def test_parser_names_the_module_it_is_called_from():
    assert launch.parser("doc").prog
