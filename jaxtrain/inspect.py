"""What a run's checkpoints hold: steps, parameter tree, statistics, differences.

DIR is a run's workdir or its checkpoints directory. Lists every step with its size, whether it is
whole, the hash of its config, its position in the data and its held-out loss; then the leaves of
one step (the latest whole one). With --diff, which leaves differ between two steps and by how much.

Needs no accelerator and no model code, and reads leaves chunk by chunk, so a checkpoint may be far
larger than memory.

    python -m jaxtrain.inspect DIR [--step=N | --diff STEP_A STEP_B] [--no_stats] [--json]
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich import box, progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxtrain import launch
from jaxtrain.train.checkpoint_read import Entry, Leaf, find_entries, read_record, whole_steps
from jaxtrain.train.checkpoint_stats import Difference, Stats, compare, measure
from jaxtrain.workdir import CHECKPOINTS


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = _arguments().parse_args(argv)
    directory = find_checkpoints(options.directory)
    rows = [_entry_row(directory, entry) for entry in find_entries(directory)]
    result: dict[str, Any] = {"directory": str(directory), "checkpoints": rows}
    # Asked for before anything is printed: an error is the only output then.
    if options.diff:
        step_a, step_b = options.diff
        differences = _diff(directory, step_a, step_b)
        _show_entries(rows)
        _show_differences(step_a, step_b, differences)
        leaves = [{**dataclasses.asdict(d), "equal": d.is_equal} for d in differences]
        result |= {"diff": options.diff, "leaves": leaves}
    else:
        step = _default_step(directory) if options.step is None else options.step
        leaves = read_record(directory, step).leaves
        stats = {} if options.no_stats else _measure(directory, step, leaves)
        _show_entries(rows)
        _show_leaves(step, leaves, stats)
        result |= {"step": step, "leaves": list(_leaf_rows(leaves, stats))}
    if options.json:
        print(json.dumps(result, allow_nan=False))


def find_checkpoints(directory: pathlib.Path) -> pathlib.Path:
    """The directory of checkpoints in or at the one given.

    Raises:
      ValueError: where there are none.
    """
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; give a workdir or its {CHECKPOINTS}/.")
    inside = directory / CHECKPOINTS
    found = inside if inside.is_dir() else directory
    if not find_entries(found):
        raise ValueError(f"{found} holds no checkpoints.")
    return found


def _default_step(directory: pathlib.Path) -> int:
    whole = whole_steps(directory)
    if not whole:
        problems = "; ".join(f"{e.path.name}: {e.problem}" for e in find_entries(directory))
        raise ValueError(f"{directory} holds no whole checkpoint ({problems}).")
    return whole[-1]


def _entry_row(directory: pathlib.Path, entry: Entry) -> dict[str, Any]:
    row = {
        "step": entry.step,
        "bytes": entry.num_bytes(),
        "whole": entry.problem is None,
        "problem": entry.problem,
    }
    if entry.problem:
        return row
    metadata = read_record(directory, entry.step).metadata
    metrics = {
        name: value if math.isfinite(value) else None
        for name, value in metadata.get("metrics", {}).items()
    }
    names = ("config_hash", "position")
    return {**row, **{name: metadata.get(name) for name in names}, "metrics": metrics}


def _measure(directory: pathlib.Path, step: int, leaves: Mapping[str, Leaf]) -> dict[str, Stats]:
    with _progress("reading", sum(leaf.num_bytes for leaf in leaves.values())) as advance:
        stats = {}
        for path, leaf in leaves.items():
            stats[path] = measure(directory, step, path)
            advance(leaf.num_bytes)
        return stats


def _diff(directory: pathlib.Path, step_a: int, step_b: int) -> list[Difference]:
    sizes = {path: leaf.num_bytes for path, leaf in read_record(directory, step_a).leaves.items()}
    with _progress("comparing", sum(sizes.values())) as advance:
        differences = []
        for difference in compare(directory, step_a, step_b):
            differences.append(difference)
            advance(sizes.get(difference.path, 0))
        return differences


def _leaf_rows(leaves: Mapping[str, Leaf], stats: Mapping[str, Stats]) -> Iterator[dict[str, Any]]:
    for path, leaf in leaves.items():
        numbers = dataclasses.asdict(stats[path]) if path in stats else {}
        yield {"path": path, **dataclasses.asdict(leaf), **numbers}


def _show_entries(rows: Sequence[Mapping[str, Any]]) -> None:
    table = _table("step", "size", "whole", "config", "position", "eval/loss")
    for row in rows:
        table.add_row(
            str(row["step"]),
            _size(row["bytes"]),
            "yes" if row["whole"] else Text(f"no: {row['problem']}", style="bold red"),
            str(row.get("config_hash") or "-"),
            str(row.get("position", "-")),
            _number(row.get("metrics", {}).get("eval/loss")),
        )
    _print(table)


def _show_leaves(step: int, leaves: Mapping[str, Leaf], stats: Mapping[str, Stats]) -> None:
    numbers = ("norm", "min", "max", "non-finite") if stats else ()
    table = _table(f"step {step}", "array", "sharding", "size", *numbers)
    for path, leaf in leaves.items():
        cells: list[str | Text] = [path, str(leaf), leaf.sharding, _size(leaf.num_bytes)]
        if stats:
            of_leaf = stats[path]
            cells += [_number(of_leaf.norm), _number(of_leaf.min), _number(of_leaf.max)]
            cells.append(_count(of_leaf.non_finite))
        table.add_row(*cells)
    _print(table)
    parts = collections.defaultdict(list)
    for path, leaf in leaves.items():
        parts[path.split(".")[0]].append(leaf)
    table = _table("part", "leaves", "elements", "size")
    for name, part in parts.items():
        elements = sum(math.prod(leaf.shape) for leaf in part)
        size = sum(leaf.num_bytes for leaf in part)
        table.add_row(name, str(len(part)), f"{elements:,}", _size(size))
    _print(table)


def _show_differences(step_a: int, step_b: int, differences: Sequence[Difference]) -> None:
    differing = [each for each in differences if not each.is_equal]
    if differing:
        headers = ("differing", "max |B-A|", "‖B-A‖/‖A‖", "non-finite")
        table = _table(f"{step_a} (A) and {step_b} (B)", *headers)
        for each in differing:
            numbers = [f"{each.num_differing:,}", _number(each.max_abs), _number(each.rel_norm)]
            cells = [*numbers, _count(each.non_finite)]
            table.add_row(each.path, *([each.not_compared] if each.not_compared else cells))
        _print(table)
    _print(
        f"{len(differences) - len(differing)} of {len(differences)} leaves are equal bit for bit"
    )


def _table(*headers: str) -> Table:
    """Text columns are aligned left, numbers right; ruled on a terminal only."""
    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, header_style="bold")
    for index, header in enumerate(headers):
        left = index == 0 or header in ("whole", "config", "array", "sharding")
        table.add_column(header, justify="left" if left else "right", no_wrap=True)
    return table


def _print(what: Table | str) -> None:
    """Prints lines as long as they need to be; rich would cut them at the console's width."""
    console = Console(markup=False, highlight=False, width=10_000)
    console.width = console.measure(what).maximum
    console.print(what)
    if not sys.stdout.isatty():
        console.print()


@contextlib.contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[float], None]]:
    bar = progress.Progress(
        progress.TextColumn(what),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda num_bytes: bar.advance(task, num_bytes)


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} TB"


def _count(non_finite: int) -> Text:
    return Text(str(non_finite), style="bold red" if non_finite else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    parser.add_argument("directory", metavar="DIR", type=pathlib.Path)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="the step whose leaves are shown (default: latest)")
    which.add_argument(
        "--diff", type=int, nargs=2, metavar=("STEP_A", "STEP_B"), help="compare two steps instead"
    )
    parser.add_argument(
        "--no_stats", action="store_true", help="show leaves without reading them: instant"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object as the last line")
    return parser


if __name__ == "__main__":
    launch.run(main)
