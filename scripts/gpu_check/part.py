"""One part of the check, or several, in this process; results are kept as each ends.

    python -m gpu_check.part MODE FILE.json NAME …

A process of its own for each part on a GPU: a kernel that reads where it may not ends every later
call of its process, and the memory that a part took at most is told per process.
"""

import functools
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jax

from gpu_check import attention, experts, grouped, training
from gpu_check.checks import Checks
from gpu_check.machine import Machine, describe, open_machine
from gpu_check.plan import MODELS, RECIPES
from jaxtrain import files

Part = Callable[[Machine, Checks], dict[str, Any]]

#: What is trained.
TRAINED: Mapping[str, Part] = {
    f"{model}_{recipe}": functools.partial(
        lambda model, recipe, machine, checks: training.run(machine, model, recipe, checks),
        model,
        recipe,
    )
    for model in MODELS
    for recipe in RECIPES
}
PARTS: Mapping[str, Part] = {
    **TRAINED,
    "attention": attention.run,
    "grouped": grouped.run,
    "experts": experts.run,
}


def main() -> None:
    """Runs the named parts; a failure is written down and the next one runs."""
    mode, path, *names = sys.argv[1:]
    machine = open_machine(mode)
    result: dict[str, Any] = {"machine": describe(machine), "parts": {}}
    for name in names:
        result["parts"][name] = run(name, machine)
        files.write_json(path, result)


def run(name: str, machine: Machine) -> dict[str, Any]:
    """What came of a part: its figures, its checks, and the error that ended it."""
    print(f"{name}:", flush=True)
    checks, start = Checks(), time.perf_counter()
    found: dict[str, Any] = {}
    try:
        found |= PARTS[name](machine, checks)
    except Exception as error:
        traceback.print_exception(error)
        found["error"] = describe_error(error)
    return {"seconds": time.perf_counter() - start, **found, "checks": checks.rows}


def describe_error(error: Exception) -> str:
    """An error in one line."""
    line = next(iter(str(error).splitlines()), "")
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
        return f"out of device memory; is another process using the GPU? ({line})"
    return f"{type(error).__name__}: {line}"


if __name__ == "__main__":
    main()
