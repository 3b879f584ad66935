"""Whether this project is right and fast on the GPU of this machine: one run, one verdict.

    scripts/gpu_check.sh [--dry | --compile_for=h100] [--output=FILE.json] [--seconds=480]

Trains a dense model of 1.07B parameters and a mixture of 2.63B, of which 0.82B are active, for 50
steps each in bfloat16 and in FP8; compares our kernels with plain XLA; times them. The compiled
programs are to prove that no fast path fell back to a slow one. Sized for one GPU of 80 GB or more.
The exit status is 0 where every check passed, 1 where one failed, 2 where nothing could be run.
docs/gpu-check.md says what is in the JSON.
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

from gpu_check import plan, report
from gpu_check.processes import run_part
from jaxtrain import files, launch
from jaxtrain.planning import aot
from jaxtrain.planning.targets import TARGETS

#: Seconds that a part may take at most, in the order that they run. All of them together are more
#: than a run has: they are for a part that hangs.
BUDGETS = {
    **{f"{model}_{recipe}": 120 for model in plan.MODELS for recipe in plan.RECIPES},
    "attention": 90,
    "grouped": 75,
    "experts": 75,
}
_GPU, _DRY = "gpu", "dry"


def main() -> None:
    """Runs the command line and exits with the verdict."""
    parser = _arguments()
    options = parser.parse_args()
    mode = _DRY if options.dry else options.compile_for or _GPU
    _check_usable(parser, mode, options.output, options.seconds)
    # Only training is compiled ahead of time.
    names = [name for name in BUDGETS if mode in (_GPU, _DRY) or name.startswith(plan.MODELS)]
    result = check(mode, names, options.seconds)
    print(report.text(result))
    if options.output is not None:
        files.write_json(options.output, result)
        print(f"written: {options.output}")
    sys.exit(0 if result["ok"] else 1)


def _check_usable(
    parser: argparse.ArgumentParser, mode: str, output: pathlib.Path | None, num_seconds: float
) -> None:
    """Ends the command where it could not do what it is asked for, before it starts."""
    if mode == _GPU and not startup.uses_gpu():
        parser.error(
            "jax would not run on an NVIDIA GPU here (no driver, no jax[cuda12], or JAX_PLATFORMS "
            "says otherwise); --dry runs the same check in miniature on the CPU"
        )
    lacking = None if mode in (_GPU, _DRY) else aot.missing()
    if lacking:
        parser.error(f"--compile_for={mode}: {lacking}")
    if not num_seconds > 0:
        parser.error(f"--seconds={num_seconds:g} must be more than 0")
    if output is None:
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output={output}: {error.strerror} ({error.filename})")
    if output.is_dir() or not os.access(output.parent, os.W_OK):
        parser.error(f"--output={output} cannot be written; name a file in a folder that can be")


def check(mode: str, names: list[str], num_seconds: float) -> dict[str, Any]:
    """Runs the parts one after the other and puts together what they found.

    A GPU's parts have a process each, of which a broken kernel or want of memory ends one; on a CPU
    all share one, whose start would cost the most.
    """
    groups = [[name] for name in names] if mode == _GPU else [names]
    start = time.monotonic()
    machine: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for group in groups:
            left = num_seconds - (time.monotonic() - start)
            limit = min(left, sum(BUDGETS[name] for name in group))
            found = run_part(mode, group, limit, pathlib.Path(cache))
            machine = machine or found["machine"]
            parts |= found["parts"]
    return report.of_parts(mode, machine, parts, time.monotonic() - start)


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    parser.prog = "scripts/gpu_check.sh"
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--dry", action="store_true", help="the same in miniature on the CPU; FP8 is emulated"
    )
    how.add_argument(
        "--compile_for",
        choices=tuple(TARGETS),
        help="compile the training parts for this GPU on a machine without one, and run nothing",
    )
    parser.add_argument(
        "--output", type=pathlib.Path, metavar="FILE.json", help="where the figures go as JSON"
    )
    parser.add_argument(
        "--seconds", type=float, default=480.0, help="that all of it may take (default 480)"
    )
    return parser


if __name__ == "__main__":
    launch.run(main)
