"""One table of what the stages of a chain came to: losses, held-out scores, time, checkpoint.

python scripts/stages_table.py runs/quickstart pretrain sft dpo distill
"""

import argparse
import json
import pathlib
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxtrain.train.checkpoint_read import whole_steps

#: The score beside the held-out loss that says most, by stage: (key, how it is written).
_SCORES = {
    "pretrain": ("eval/bits_per_byte", "{:.3f} bits per byte"),
    "sft": ("eval/accuracy", "{:.1%} of tokens right"),
    "dpo": ("eval/accuracy", "{:.1%} of pairs right"),
    "reward": ("eval/accuracy", "{:.1%} of pairs right"),
    "distill": ("eval/kl", "KL {:.3f} nats from teacher"),
}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("stages", nargs="+", choices=tuple(_SCORES))
    options = parser.parse_args()
    table = Table(
        "stage", "loss, first → last", "held-out loss", "held-out score", "s", "checkpoint"
    )
    for stage in options.stages:
        table.add_row(stage, *_cells(options.directory, stage))
    Console(width=120).print(table)  # as wide where it goes to a file


def _cells(directory: pathlib.Path, stage: str) -> list[str]:
    workdir = directory / stage
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").open()]
    losses = [line["loss"] for line in lines if "loss" in line]
    scores: dict[str, Any] = next(line for line in reversed(lines) if "eval/loss" in line)
    key, form = _SCORES[stage]
    secs = directory / f"{stage}.secs"
    return [
        f"{losses[0]:.3f} → {losses[-1]:.3f}",
        f"{scores['eval/loss']:.3f}",
        form.format(scores[key]),
        secs.read_text().strip() if secs.exists() else "",
        f"{workdir}@{max(whole_steps(workdir / 'checkpoints'))}",
    ]


if __name__ == "__main__":
    main()
