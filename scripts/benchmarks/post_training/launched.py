"""Commands of jaxtrain as a user calls them, each once; what is done is not done again."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtrain import files

ROOT = pathlib.Path(__file__).resolve().parents[3]
_CONFIG = pathlib.Path(__file__).resolve().parent / "config.py"
_END_OF_LOG = 2000  # characters


class Runs:
    """A folder of runs; what each came to stands in its workdir (figures.json)."""

    def __init__(self, out: pathlib.Path):
        self.out = out.absolute()

    def make(self, path: pathlib.Path, module: str, *flags: str) -> None:
        """Runs a command that makes `path`, unless that is there."""
        if not path.exists():
            self._call(path.name, [module, *flags])

    def train(
        self, name: str, stage: str, model: str, stores: Sequence[str], flags: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """One run of a stage: {"command", "secs" (CPU), "scores" (the last held-out ones)}.

        Args:
          model: a path, or "student", see config.py.

        Raises:
          ValueError: where the name was run with other flags.
        """
        paths = [str(self.out / "stores" / store) for store in stores]
        argument = ",".join([stage, model, *paths])
        workdir = self.out / "runs" / name
        command = [f"jaxtrain.{stage}", f"--config={_CONFIG}:{argument}", f"--workdir={workdir}"]
        command += [f"--config.{key}={value}" for key, value in flags.items()]
        path = workdir / "figures.json"
        if path.exists():
            figures = json.loads(path.read_text())
            if figures["command"] != command:
                raise ValueError(
                    f"{workdir} is of another command; delete it, or give another --out"
                )
            return figures
        secs = self._call(name, command)
        lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        scores = [line for line in lines if "eval/loss" in line][-1]
        figures = {"command": command, "secs": round(secs, 1), "scores": scores}
        with files.write_whole(path) as file:
            file.write(json.dumps(figures, indent=1).encode())
        return figures

    def _call(self, name: str, command: Sequence[str]) -> float:
        """CPU seconds of `python -m …`; its output goes to OUT/logs/NAME.log."""
        log = self.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, stdout=file, stderr=file
            )
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{log.read_text()[-_END_OF_LOG:]}")
        secs = usage.ru_utime + usage.ru_stime
        print(f"{name}: {secs:.0f} s of CPU time", flush=True)
        return secs
