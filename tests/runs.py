"""Runs of the launchers in processes of their own, and what they leave behind."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import jax

ROOT = pathlib.Path(__file__).resolve().parents[1]
TINY_RUN = ROOT / "tests" / "tiny_run.py"
TINY_VOCAB = 64


@dataclasses.dataclass
class Launcher:
    """Starts `python -m jaxtrain.<stage>` in a process of its own."""

    flags: list[str]

    def environment(self, devices: int, **more: str) -> dict[str, str]:
        """That of this process, with its compilation cache and as many devices."""
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or "",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # as if re-executed already
            **more,
        }

    def start(self, *arguments: str, devices: int = 1, stage: str = "pretrain", **more: str):
        """A running process."""
        return subprocess.Popen(
            [sys.executable, "-m", f"jaxtrain.{stage}", *self.flags, *map(str, arguments)],
            env=self.environment(devices, **more), cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *arguments: str, fails: bool = False, **settings: Any) -> str:
        """Runs to the end; returns what was printed."""
        process = self.start(*arguments, **settings)
        out, _ = process.communicate(timeout=600)
        assert (process.returncode != 0) is fails, out
        return out


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
