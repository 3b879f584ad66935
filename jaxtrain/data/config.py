"""`DataConfig`: which stores a run reads, in which shares, and how rows and batches are made."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from jaxtrain.options import option


@dataclass(frozen=True)
class SourceConfig:
    """One token store of a mixture."""

    path: str = option(
        doc="Directory or URL (gs://, s3://, http://) of a token store.", resumable=True
    )
    weight: float = option(
        1.0,
        "Share of rows, relative to the other sources; 0 leaves the source out.",
        resumable=True,
    )
    weight_changes: tuple[tuple[int, float], ...] = option(
        (), "Pairs (step, weight): the weight from that step on.", resumable=True
    )

    def __post_init__(self):
        for value in (self.weight, *(weight for _, weight in self.weight_changes)):
            if not 0 <= value <= 1e9:
                raise ValueError(f"weight={value} must be from 0 to 1e9; shares are relative.")
        _check_steps("weight_changes", self.weight_changes)

    def weight_at(self, step: int) -> float:
        """The relative weight in force at a step."""
        return ([self.weight] + [w for first, w in self.weight_changes if first <= step])[-1]


@dataclass(frozen=True)
class DataConfig:
    """Rows, batches and their sources."""

    sources: Mapping[str, SourceConfig] = option({}, "Token stores to train on, by name.")
    eval_sources: Mapping[str, SourceConfig] = option(
        {}, "Token stores to measure the held-out loss on, each read once per evaluation."
    )
    batch_size: int = option(8, "Rows of a global batch.")
    batch_size_changes: tuple[tuple[int, int], ...] = option(
        (), "Pairs (step, batch_size): the batch size from that step on.", resumable=True
    )
    seq_len: int = option(512, "Positions of a row, in tokens.")
    packing: str = option(
        "concat",
        "How documents fill rows: concat cuts the stream and attends across documents; "
        "concat_isolated cuts it and keeps documents apart; best_fit keeps them apart and whole.",
        choices=("concat", "concat_isolated", "best_fit"),
    )
    objective: str = option(
        "next_token",
        "What a position is trained to predict: the token after it, or itself where masked.",
        choices=("next_token", "masked_lm"),
    )
    mask_frac: float = option(0.15, "masked_lm: fraction of tokens chosen as targets.")
    weighting: str = option(
        "token",
        "What counts once in the training loss: each trained token, or each document (its trained "
        "tokens share a weight of 1).",
        choices=("token", "document"),
    )
    exhausted: str = option(
        "repeat",
        "What follows a source's last row: another epoch in another order (repeat), or nothing: "
        "every source is read once and leaves the mixture (stop).",
        choices=("repeat", "stop"),
    )
    num_workers: int = option(
        0, "Processes that make batches ahead; 0: a thread of the training process.", resumable=True
    )
    prefetch: int = option(
        4, "Batches made ahead of the step; 0: each one when asked for.", resumable=True
    )

    def __post_init__(self):
        for name, least in (("batch_size", 1), ("seq_len", 1), ("num_workers", 0), ("prefetch", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}.")
        _check_names("sources", self.sources)
        _check_names("eval_sources", self.eval_sources)
        for each in fields(self):
            choices = each.metadata["choices"]
            if choices and getattr(self, each.name) not in choices:
                value = getattr(self, each.name)
                raise ValueError(f"{each.name}={value!r} must be one of {', '.join(choices)}.")
        if self.weighting == "document" and self.packing == "concat":
            raise ValueError(
                "weighting='document' needs rows that keep documents apart; set packing=best_fit."
            )
        if not 0 < self.mask_frac < 1:
            raise ValueError(f"mask_frac={self.mask_frac} must be between 0 and 1.")
        if self.num_workers and not self.prefetch:
            raise ValueError("prefetch=0 makes num_workers useless; raise it or set num_workers=0.")
        _check_steps("batch_size_changes", self.batch_size_changes)
        for _, size in self.batch_size_changes:
            if size < 1:
                raise ValueError(
                    f"batch_size_changes has batch size {size}; it must be at least 1."
                )

    @property
    def schedule(self) -> "BatchSchedule":
        """Which global rows each step takes."""
        return BatchSchedule(((0, self.batch_size), *self.batch_size_changes))

    def positions_per_step(self) -> tuple[tuple[int, int], ...]:
        """Pairs (first step, positions of a batch from that step on)."""
        return tuple((step, size * self.seq_len) for step, size in self.schedule.stages)

    def until(self, step: int) -> "DataConfig":
        """What decides the batches before `step`: schedules without their later changes.

        Two configs give the same first `step` batches if these are equal (and the stores are).
        """
        sources = {
            name: replace(source, path="", weight_changes=_before(source.weight_changes, step))
            for name, source in self.sources.items()
            if source.weight or any(weight for _, weight in _before(source.weight_changes, step))
        }
        return replace(
            self,
            sources=sources,
            eval_sources={},
            batch_size_changes=_before(self.batch_size_changes, step),
            num_workers=0,
            prefetch=0,
        )


@dataclass(frozen=True)
class BatchSchedule:
    """Batch sizes over the steps; numbers the rows of all batches through, from 0."""

    stages: tuple[tuple[int, int], ...]  # (first step, batch size), the first at step 0
    _first_rows: tuple[int, ...] = field(init=False)  # of each stage

    def __post_init__(self):
        rows = [0]
        for (first, size), (stop, _) in zip(self.stages, self.stages[1:], strict=False):
            rows.append(rows[-1] + size * (stop - first))
        object.__setattr__(self, "_first_rows", tuple(rows))

    def size(self, step: int) -> int:
        """Rows of the batch at a step."""
        return self._stage(step)[1]

    def first_row(self, step: int) -> int:
        """Rows in all batches before a step, which is the number of the step's first row."""
        first, size, row = self._stage(step)
        return row + size * (step - first)

    def step_of_row(self, row: int) -> int:
        """The step that a row belongs to."""
        index = sum(first <= row for first in self._first_rows) - 1
        first, size = self.stages[index]
        return first + (row - self._first_rows[index]) // size

    def _stage(self, step: int) -> tuple[int, int, int]:
        index = sum(first <= step for first, _ in self.stages) - 1
        return (*self.stages[index], self._first_rows[index])


def _before(changes: tuple, step: int) -> tuple:
    return tuple(change for change in changes if change[0] < step)


def _check_names(field_name: str, sources: Mapping[str, SourceConfig]) -> None:
    for name in sources:
        if not re.fullmatch(r"[^\s/]+", name):  # it is a part of metrics' names
            raise ValueError(
                f"{field_name} has a source named {name!r}; a name needs at least one character, "
                "and neither spaces nor slashes."
            )


def _check_steps(name: str, changes: Sequence[tuple[int, float]]) -> None:
    steps = [step for step, _ in changes]
    if any(step < 1 for step in steps) or steps != sorted(set(steps)):
        raise ValueError(f"{name} has steps {steps}; they must rise and be at least 1.")
