"""The verdict: figures of all parts side by side, what failed, what was not checked."""

import datetime
import pathlib
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_check import plan
from gpu_check.checks import FAILED, NOT_CHECKED, PASSED, Checks, lines

#: Losses still fall by some per cent a step when the last ones are taken; FP8 that works stays well
#: within that, and a wrong scale or operand does not.
MOST_GAP = 0.05
_ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Rows of the table: key of a part's figures, factor, unit.
_TABLE: Iterable[tuple[str, float, str]] = (
    ("step_secs_median", 1e3, "ms"),
    ("tokens_per_sec", 1.0, "tokens/s"),
    ("mfu", 100.0, "% of the bf16 peak"),
    ("mfu_own_precision", 100.0, "% of its own precision's peak"),
    ("last_loss", 1.0, "nats, last 10 steps"),
    ("compile_secs", 1.0, "s to compile"),
    ("program_bytes", 1e-9, "GB by the compiler"),
    ("device_memory_bytes", 1e-9, "GB at most"),
)


def of_parts(
    mode: str, machine: Mapping[str, Any], parts: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """The whole result, as it is written."""
    every = {**parts, "fp8_against_bfloat16": _compared(parts)}
    return {
        "mode": mode,
        "ok": not lines(every, FAILED),
        "failures": lines(every, FAILED),
        "not_checked": lines(every, NOT_CHECKED),
        "num_passed": len(lines(every, PASSED)),
        "seconds": seconds,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": dict(machine),
        "parts": every,
    }


def _compared(parts: Mapping[str, Any]) -> dict[str, Any]:
    """FP8 against bfloat16 on the same batches: losses and time of a step."""
    print("fp8_against_bfloat16:")
    checks, figures = Checks(), {}
    for model in plan.MODELS:
        wide, narrow = (parts.get(f"{model}_{recipe}", {}) for recipe in plan.RECIPES)
        what = f"{model}: FP8 learns as bfloat16 does"
        if "last_loss" not in wide or "last_loss" not in narrow:
            checks.leave_out(what, "one of the two has no losses")
            continue
        gap = narrow["last_loss"] / wide["last_loss"] - 1
        figures[f"{model}_loss_gap"] = gap
        figures[f"{model}_step_ratio"] = narrow["step_secs_median"] / wide["step_secs_median"]
        checks.expect(
            what,
            abs(gap) <= MOST_GAP,  # not so of a NaN
            f"{gap:+.2%} in the mean of the last losses, at most {MOST_GAP:.0%} either way",
        )
    return {**figures, "checks": checks.rows}


def text(result: Mapping[str, Any]) -> str:
    """What a person wants to see of it."""
    machine = result["machine"]
    out = [
        "",
        f"{machine.get('device', 'no device')}, driver {machine.get('driver', 'unknown')}, commit "
        f"{result['commit']}, {result['seconds']:.0f} s",
        *_table({name: result["parts"].get(name, {}) for name in _trained(result)}),
        *(
            f"{name}: {key} {value:.4g}"
            for name, part in result["parts"].items()
            for key, value in _others(name, part)
        ),
        *(f"not checked: {line}" for line in result["not_checked"]),
        *(f"FAILED: {line}" for line in result["failures"]),
        f"{result['num_passed']} checks passed, {len(result['failures'])} failed, "
        f"{len(result['not_checked'])} not made",
    ]
    return "\n".join(out)


def _trained(result: Mapping[str, Any]) -> list[str]:
    return [name for name in result["parts"] if name.startswith(plan.MODELS)]


def _table(columns: Mapping[str, Any]) -> Iterable[str]:
    yield f"{'':32}" + "".join(f"{name:>16}" for name in columns)
    for key, factor, unit in _TABLE:
        cells = [part.get(key) for part in columns.values()]
        if any(cell is not None for cell in cells):
            shown = ["–" if cell is None else f"{cell * factor:.4g}" for cell in cells]
            yield f"{unit:32}" + "".join(f"{cell:>16}" for cell in shown)


def _others(name: str, part: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    """Figures of the parts that train nothing."""
    if name.startswith(plan.MODELS):
        return
    for key, value in part.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}, {inner}", number) for inner, number in value.items())
        elif isinstance(value, float) and key != "seconds":
            yield key, value


def _commit() -> str:
    """The checkout's commit, marked where files differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(_ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
