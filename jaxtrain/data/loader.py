"""Global batch n as a pure function of (config, seed, n).

    step n ─ batch schedule ─▶ global rows ─ mixture ─▶ (source, draw) ─ permutation ─▶ row of the
    source's plan ─ packing ─▶ pieces of its token stream ─ store ─▶ tokens ─ assemble ─▶ Batch

Each arrow is a closed form, so the position in the data is one integer, the step. A host asks for
its rows of the batch and gets those of the same global batch, whatever the number of hosts, worker
processes or microbatches, and whatever was read before.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxtrain.data.batches import AnyBatch, BatchMaker
from jaxtrain.data.config import DataConfig
from jaxtrain.data.metadata import TAUGHT_FROM
from jaxtrain.data.mixture import Mixture
from jaxtrain.data.packing import Pieces
from jaxtrain.data.pipeline import iterate
from jaxtrain.data.report import Report, SourceReport
from jaxtrain.data.servable import check_source
from jaxtrain.data.sources import Source, check_alike, open_stores
from jaxtrain.data.teacher import TeacherStore
from jaxtrain.data.trace import RowTrace, documents_of, trace_rows


class Loader:
    """The batches of a run."""

    def __init__(
        self,
        config: DataConfig,
        seed: int,
        references: Mapping[str, np.ndarray] | None = None,
        teachers: Mapping[str, TeacherStore] | None = None,
    ):
        """Opens the stores and plans their rows.

        Args:
          references: per source of answers, the log-probability of each of its documents under a
            reference, in nats; see `plan_rows.answer_rows`.
          teachers: per source, what a teacher said of its tokens.

        Raises:
          ValueError: where a store cannot be read or its documents cannot be served this way.
        """
        self.config = config
        self.seed = seed
        self.schedule = config.schedule
        stores = open_stores(config)
        check_alike({f"config.data.sources.{name}.path": each for name, each in stores.items()})
        self.sources = tuple(Source(name, store, config, seed) for name, store in stores.items())
        for source in self.sources:
            check_source(source, config)
        self.mixture = self._make_mixture()
        self._maker = BatchMaker(self.sources, config, seed, references, teachers)

    def with_references(self, references: Mapping[str, np.ndarray]) -> "Loader":
        """The same batches with these references, once they are known."""
        return self._with_maker(BatchMaker(self.sources, self.config, self.seed, references))

    def with_teachers(self, teachers: Mapping[str, TeacherStore]) -> "Loader":
        """The same batches with what these teachers said, once it is known."""
        return self._with_maker(BatchMaker(self.sources, self.config, self.seed, None, teachers))

    def _with_maker(self, maker: BatchMaker) -> "Loader":
        other = copy.copy(self)
        other._maker = maker
        return other

    @property
    def answers(self) -> str | None:
        """Which of `answers.KINDS` the batches are of; None where documents stand alone."""
        return self._maker.answers

    def _make_mixture(self) -> Mixture:
        configs = [self.config.sources[source.name] for source in self.sources]
        steps = {0, *(step for each in configs for step, _ in each.weight_changes)}
        schedule: list[tuple[int, list[float]]] = []
        for step in sorted(steps):
            weights = [
                each.weight_at(step) if source.num_rows else 0.0
                for each, source in zip(configs, self.sources, strict=True)
            ]
            if not any(weights):
                raise ValueError(
                    f"config.data.sources: no source with tokens has a weight at step {step}; "
                    "give one a weight above 0."
                )
            # A change to the same weights begins no phase: naming a source that has no weight yet
            # must not disturb the draws of the others.
            if not schedule or weights != schedule[-1][1]:
                schedule.append((self.schedule.first_row(step), weights))
        stops = self.config.exhausted == "stop"
        return Mixture(schedule, [s.num_rows for s in self.sources] if stops else None)

    @property
    def num_steps(self) -> int | None:
        """Batches until every source has been read once; None where sources repeat."""
        if self.mixture.num_rows is None:
            return None
        return self.schedule.step_of_row(self.mixture.num_rows - 1) + 1

    def check_num_steps(self, num_steps: int) -> None:
        """Raises ValueError where the sources give fewer batches."""
        available = self.num_steps
        if available is not None and num_steps > available:
            raise ValueError(
                f"config.loop.num_steps={num_steps} must be at most {available}: "
                "config.data.exhausted='stop' reads each source once; lower it or set "
                "exhausted='repeat'."
            )

    def batch_size(self, step: int) -> int:
        """Rows of the global batch at a step."""
        return self.schedule.size(step)

    def batch_size_steps(self, num_steps: int) -> list[int]:
        """The steps of a run at which the batch size is new, the first included."""
        return [step for step, _ in self.schedule.stages if step < num_steps]

    def batch(self, step: int, rows: slice | None = None) -> AnyBatch:
        """The batch of a step, or these rows of it."""
        return self.block(step, step + 1, rows)

    def block(self, start: int, stop: int, rows: slice | None = None) -> AnyBatch:
        """The batches of steps [start, stop) as one, one after another; or `rows` of each."""
        global_rows = self._global_rows(start, stop, rows)
        filled = [(source, pieces) for source, _, pieces in self._filled(global_rows)]
        return self._maker.make(filled, global_rows)

    def _global_rows(self, start: int, stop: int, rows: slice | None) -> np.ndarray:
        self.check_num_steps(stop)
        if rows is None:
            return np.arange(self.schedule.first_row(start), self.schedule.first_row(stop))
        return np.concatenate(
            [
                self.schedule.first_row(step) + np.arange(self.batch_size(step))[rows]
                for step in range(start, stop)
            ]
        )

    def _filled(self, global_rows: np.ndarray) -> Iterator[tuple[Source, np.ndarray, Pieces]]:
        """Per source: its draws among rising global rows, and their pieces placed in these rows."""
        if not len(global_rows):
            return
        first = int(global_rows[0])
        draws = self.mixture.draws(first, int(global_rows[-1]) + 1)
        places = np.flatnonzero(global_rows - first < len(draws.sources))  # the others are filler
        taken = global_rows[places] - first
        for index, source in enumerate(self.sources):
            mine = draws.sources[taken] == index
            if mine.any():
                indexes = draws.indexes[taken[mine]]
                pieces = source.plan.pieces(source.shuffled(indexes))
                yield source, indexes, pieces._replace(rows=places[mine][pieces.rows])

    def iterate(self, start: int, stop: int, rows: slice | None = None) -> Iterator[AnyBatch]:
        """The batches of steps [start, stop), or `rows` of each, made ahead as the config says."""
        self.check_num_steps(stop)
        return iterate(self, start, stop, rows or slice(None))

    def trace(self, step: int, rows: slice | None = None) -> list[RowTrace]:
        """Where each row of a batch, and each segment in it, comes from; filler rows left out."""
        global_rows = self._global_rows(step, step + 1, rows)
        traces = []
        for source, indexes, pieces in self._filled(global_rows):
            traces += trace_rows(source, global_rows, indexes, pieces)
        return sorted(traces, key=lambda trace: trace.row)

    def describe(self, step: int, limit: int = 3) -> str:
        """One line that names a batch's first documents: source, id, and file and offset."""
        size = self.batch_size(step)
        first = self.schedule.first_row(step)
        found = []
        for row in range(size):  # one by one: each document named is a read
            for trace in self.trace(step, slice(row, row + 1)):
                found += documents_of(trace)
            if len(found) >= limit:
                break
        documents = "; ".join(found[:limit]) or "filler"
        return f"rows {first:,} to {first + size - 1:,} begin with {documents}"

    def report(self, num_steps: int) -> Report:
        """What the first `num_steps` batches take from each source."""
        num_rows = self.schedule.first_row(num_steps)
        counts = self.mixture.counts(num_rows)
        return Report(
            num_steps=num_steps,
            num_rows=num_rows,
            available_steps=self.num_steps,
            filler_rows=num_rows - int(counts.sum()),
            packing=self.config.packing,
            exhausted=self.config.exhausted,
            sources=tuple(
                SourceReport(
                    source.name,
                    int(draws),
                    source.ledger,
                    0 if source.store.verified else source.store.num_bytes,
                    source.store.answers,
                    len(source.store.group_ends) if source.store.answers else 0,
                )
                for source, draws in zip(self.sources, counts, strict=True)
            ),
        )

    def metadata(self) -> dict[str, Any]:
        """What the stores hold, for the checkpoint and the data card: contents, never paths."""
        return {
            source.name: {
                "fingerprint": source.store.metadata.fingerprint,
                "tokenizer_sha256": source.store.tokenization.tokenizer_sha256,
                "text_sha256": list(source.store.metadata.text_sha256),
                "num_tokens": source.store.num_tokens,
                "num_documents": source.store.num_documents,
                "num_text_bytes": source.store.num_text_bytes,
                **_answers(source),
                **_taught_from(source),
            }
            for source in self.sources
        }


def _answers(source: Source) -> dict[str, str | int]:
    """Kind and groups of a store of answers; {} where documents stand alone."""
    store = source.store
    return {"answers": store.answers, "num_groups": len(store.group_ends)} if store.answers else {}


def _taught_from(source: Source) -> dict[str, str]:
    """The tokenizer before it got the control tokens of a chat template; {} where it got none."""
    settings = source.store.tokenization.settings
    return {TAUGHT_FROM: settings[TAUGHT_FROM]} if TAUGHT_FROM in settings else {}
