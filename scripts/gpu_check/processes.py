"""Parts of the check in processes of their own, which may hang or die."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from jaxtrain import files

_DRY = "dry"
_NUM_LINES = 5  # of what a process said last
#: A CPU's compiler need not try hard for programs that run once.
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def run_part(
    mode: str, names: Sequence[str], num_seconds: float, cache: pathlib.Path
) -> dict[str, Any]:
    """What `gpu_check.part` found of the named parts; of those that it did not end, the reason.

    Args:
      cache: a folder for compiled programs.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, log = pathlib.Path(folder, "parts.json"), pathlib.Path(folder, "stderr")
        failure = "there was no time left for it"
        if num_seconds > 0:
            failure = _run(mode, path, names, log, num_seconds, cache)
        found = files.read_json(path) if path.exists() else {"machine": {}, "parts": {}}
    missing = [name for name in names if name not in found["parts"]]
    for index, name in enumerate(missing):
        error = failure if index == 0 else f"not run; {missing[0]}: {failure}"
        found["parts"][name] = {"error": error, "checks": []}
        print(f"{name}:\n  failed: {error}", flush=True)
    return found


def _run(
    mode: str,
    path: pathlib.Path,
    names: Sequence[str],
    log: pathlib.Path,
    num_seconds: float,
    cache: pathlib.Path,
) -> str:
    """Why the process ended, in one line."""
    command = [sys.executable, "-m", "gpu_check.part", mode, str(path), *names]
    with open(log, "wb") as stderr:
        process = subprocess.Popen(
            command, stderr=stderr, env=_environment(mode, cache), start_new_session=True
        )
        try:
            status = process.wait(num_seconds)
        except BaseException as reason:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(reason, subprocess.TimeoutExpired):
                raise
            return f"it ran past the {num_seconds:.0f} s that it had"
    said = log.read_text(errors="replace").strip().splitlines()
    if status:
        print("\n".join(said), file=sys.stderr, flush=True)
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return f"its process ended with {how}: {' | '.join(said[-_NUM_LINES:])}"


def _environment(mode: str, cache: pathlib.Path) -> dict[str, str]:
    """Settings that jax reads when it is imported; the user's own come first."""
    environment = dict(os.environ)
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # The recipes of a model begin with the same program. What an earlier run has compiled would not
    # tell how long that takes, nor surely what is in it.
    if mode != _DRY or "JAX_COMPILATION_CACHE_DIR" not in environment:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    if mode == "gpu":
        environment.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one is looked at
        if not {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & set(environment):
            environment["XLA_CLIENT_MEM_FRACTION"] = "0.92"
    else:
        environment["JAX_PLATFORMS"] = "cpu"
    if mode == _DRY:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {_QUICK}"
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return environment
