"""What has to be set before jax is imported; a launcher calls `enter` first of all.

On a CPU, page faults on freshly mapped buffers dominate every memory-bound operation of a training
step. glibc's allocator uses transparent huge pages when told so before the process starts, so a
launcher re-executes itself once with that setting (docs/pretraining.md has the measured gain).
"""

import importlib.util
import os
import pathlib
import platform
import signal
import sys
import time
from typing import Any

_TUNABLE = "glibc.malloc.hugetlb"
_MIN_GLIBC = (2, 35)  # the release that brought the tunable
_THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_GPU_DRIVER = (
    pathlib.Path("/proc/driver/nvidia/version"),
    pathlib.Path("/dev/nvidiactl"),
    pathlib.Path("/dev/dxg"),  # of WSL
)


_STARTED = "JAXTRAIN_STARTED"  # carries the time of the first start over the second

started = time.time()  # of the command, in seconds since the epoch


def enter() -> None:
    """Re-executes the process once with huge pages where that helps: CPU, Linux, glibc >= 2.35.

    Where jax has a plugin for GPUs and there is no driver, it is told to use the CPU. Until
    `launch.run`, Ctrl-C ends the process at once.
    """
    global started
    started = float(os.environ.pop(_STARTED, started))
    if _has_plugin() and not uses_gpu():  # else jax tries it, and shows a traceback
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if allocator()[0] != "re-execute":
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not under nohup
            signal.signal(signal.SIGINT, leave)
        return
    os.environ[_STARTED] = str(started)
    tunables = [os.environ["GLIBC_TUNABLES"]] if os.environ.get("GLIBC_TUNABLES") else []
    environment = {**os.environ, "GLIBC_TUNABLES": ":".join([*tunables, f"{_TUNABLE}=1"])}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def leave(number: int, _frame: Any) -> None:
    """Ends the process: while libraries are imported, an exception could be lost inside one."""
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(128 + number)


def allocator() -> tuple[str, str]:
    """(state, reason) of the allocator's huge pages; the state is on, off or re-execute."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if _TUNABLE in tunables:
        is_on = f"{_TUNABLE}=0" not in tunables
        return "on" if is_on else "off", f"GLIBC_TUNABLES={tunables}"
    if uses_gpu():
        return "off", "the work runs on a GPU"
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) < _MIN_GLIBC:
        return "off", f"needs glibc >= 2.35, this is {name or 'another libc'} {version}"
    if not _THP.is_file() or "[never]" in _THP.read_text():
        return "off", f"the kernel has transparent huge pages off ({_THP})"
    return "re-execute", f"{_TUNABLE}=1 has to be set before the process starts"


def uses_gpu() -> bool:
    """Whether jax will run on an NVIDIA GPU, told without importing it."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms.split(",")[0] in ("cuda", "gpu")
    return _has_plugin() and any(path.exists() for path in _GPU_DRIVER)


def _has_plugin() -> bool:
    return any(importlib.util.find_spec(name) for name in _GPU_PLUGINS)
