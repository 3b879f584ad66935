"""The training loop: feed batches, keep one step in flight, log, evaluate, save, stop cleanly.

The host never waits for the step it has just started, only for the one before, so the device
always has work queued; metrics are read when their step is done. What a stage is, the loop does
not know: it gets a `Program`, a batch source and a held-out source.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from jaxtrain.options import option
from jaxtrain.train.checkpoint import Checkpoints
from jaxtrain.train.clock import Clock, memory
from jaxtrain.train.program import Program
from jaxtrain.train.scores import HeldOut, mean_scores, total_sums
from jaxtrain.train.signals import Signals, StoppedBySignal
from jaxtrain.train.state import TrainState, token_count
from jaxtrain.train.step import Metrics
from jaxtrain.train.writers import Terminal, Writer

_DEAD = "moe/dead_experts"  # see models/router.py


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long to train, and what happens every so many steps."""

    num_steps: int = option(doc="Steps (batches) of the whole run.", resumable=True)
    seed: int = option(0, "Seed of initialisation, dropout and data order.")
    num_microbatches: int = option(
        1, "Passes that one batch is accumulated over (less memory, same result).", resumable=True
    )
    log_every: int = option(10, "Steps between lines of metrics.", resumable=True)
    eval_every: int | None = option(
        None, "Steps between held-out evaluations; None: only at the end.", resumable=True
    )
    max_skips: int = option(
        5, "Skipped updates in a row (not finite) after which the run stops.", resumable=True
    )

    def __post_init__(self):
        for name in ("num_steps", "num_microbatches", "log_every", "eval_every", "max_skips"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if self.num_steps >= 2**31:
            raise ValueError(f"num_steps={self.num_steps} must be < 2**31.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed} must be in [0, 2**32).")


class BatchSource(Protocol):
    """Where batches come from: batch n is a pure function of n."""

    def batch_size(self, step: int) -> int:
        """Rows of the global batch at a step."""
        ...

    def batch_size_steps(self, num_steps: int) -> Sequence[int]:
        """The steps of a run at which the batch size is new, the first included."""
        ...

    def describe(self, step: int) -> str:
        """One line on where a batch comes from, for a report of what went wrong."""
        ...

    def iterate(self, start: int, stop: int, rows: slice) -> Iterable[Any]:
        """Rows `rows` of each batch from `start` up to `stop`, all of one batch size."""
        ...


@dataclasses.dataclass
class Loop:
    """One run from a state to `config.num_steps`; `run` returns the last state."""

    program: Program
    config: LoopConfig
    source: BatchSource
    heldout: Mapping[str, HeldOut]
    checkpoints: Checkpoints
    save_every: int
    writer: Writer
    terminal: Terminal
    metadata: Mapping[str, Any]  # stored in every checkpoint beside position and metrics
    flops_per_token: float
    peak_flops: float
    frozen: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: The state's step is due for an evaluation that a stop left out.
    owes_scores: bool = False
    #: Bits per byte that compressors reach on the held-out text, shown beside the model's.
    baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)
    #: What the loss is a mean over, for people.
    unit: str = "token"

    def run(self, state: TrainState) -> TrainState:
        """Trains, then waits until the last checkpoint is whole.

        Raises:
          StoppedBySignal: after saving, when SIGTERM or Ctrl-C asked to stop.
          RuntimeError: after `max_skips` skipped updates in a row.
        """
        step = int(state.step)
        if self.owes_scores:
            self._evaluate(step, state)
        clock = Clock()
        in_flight: tuple[int, Metrics] | None = None
        with Signals() as signals:
            for batch in self._batches(step, clock):
                state, metrics = self.program.train_step(state, self.frozen, batch)
                if in_flight:
                    self._finish(*in_flight, clock)
                step += 1
                in_flight = (step, metrics)
                stop = signals.stop_at(step)
                is_last = step == self.config.num_steps
                evaluates = is_last or _due(step, self.config.eval_every)
                if stop or evaluates or step % self.save_every == 0:
                    self._finish(*in_flight, clock)
                    in_flight = None
                    scores = self._evaluate(step, state) if evaluates and not stop else {}
                    if stop or is_last or step % self.save_every == 0:
                        self._save(step, state, scores)
                    clock.restart()
                if stop:
                    self._wait_for_checkpoints()
                    raise StoppedBySignal(stop, step)
                self._tell_saved()
            self._wait_for_checkpoints()  # a signal now is only noted: the save ends first
        return state

    def _batches(self, start: int, clock: Clock):
        """Global batches from `start` on; a change of the batch size begins a new stretch."""
        ends = [*self.source.batch_size_steps(self.config.num_steps)[1:], self.config.num_steps]
        for stop in ends:
            if start >= stop:
                continue
            size = self.source.batch_size(start)
            rows = self.program.local_rows(size)
            clock.expect_compilation()
            for batch in clock.waiting(self.source.iterate(start, stop, rows)):
                yield self.program.put(batch, size)
            start = stop

    def _finish(self, step: int, metrics: Metrics, clock: Clock) -> None:
        """Waits for a step and reports it if it is due."""
        jax.block_until_ready(metrics["loss"])
        clock.tick()
        if step % self.config.log_every == 0 or step == self.config.num_steps:
            self._report(step, metrics, clock)
        self._check_skips(step, metrics)

    def _report(self, step: int, metrics: Metrics, clock: Clock) -> None:
        values = {name: np.asarray(value) for name, value in jax.device_get(metrics).items()}
        tokens = token_count(values.pop("tokens"))
        scalars = dict(_scalars(values))
        scalars |= clock.rates(tokens, scalars["batch_tokens"])
        model_flops = scalars["tokens_per_sec"] * self.flops_per_token
        scalars |= {"tokens": tokens, "mfu": model_flops / self.peak_flops, **memory()}
        self.writer.write_scalars(step, scalars)
        self.terminal.step(step, scalars)
        dead = [
            f"{number} in {name}" for name, number in scalars.items() if _DEAD in name and number
        ]
        if dead:
            self.terminal.say(
                f"step {step}: experts without a token: {', '.join(dead)}; raise the balance "
                "(config.model.router_balance_weight, router_bias_rate)"
            )

    def _check_skips(self, step: int, metrics: Metrics) -> None:
        """Says that an update was skipped and why; ends the run after too many in a row."""
        num_skips = int(metrics["skipped_in_row"])
        if not num_skips:
            return
        loss, norm, weight = (
            float(metrics[name]) for name in ("loss", "grad_norm", "target_weight")
        )
        reason = f"loss {loss}, grad_norm {norm}" if weight else "the batch has no targets"
        told = f"step {step}: update skipped, {num_skips} in a row: {reason}"
        self.terminal.say(f"{told}; batch {step - 1}: {self.source.describe(step - 1)}")
        if num_skips >= self.config.max_skips:
            raise RuntimeError(
                f"{told}; parameters are those before. Lower config.optim.lr or look at the "
                "batches named above; config.loop.max_skips sets the limit."
            )

    def _evaluate(self, step: int, state: TrainState) -> dict[str, float]:
        size = self.source.batch_size(0)
        sets = {
            name: (total_sums(self.program, state, heldout, size, self.frozen), heldout.text_bytes)
            for name, heldout in self.heldout.items()
        }
        if not sets:
            return {}
        scores = {f"eval/{key}": value for key, value in mean_scores(*sets.values()).items()}
        if len(sets) > 1:
            for name, each in sets.items():
                scores |= {f"eval/{name}/{key}": value for key, value in mean_scores(each).items()}
        self.writer.write_scalars(step, scores)
        told = f"step {step} held-out: {scores['eval/loss']:.4f} nats per {self.unit}"
        if self.unit != "token" and "eval/accuracy" in scores:
            told += f", {scores['eval/accuracy']:.1%} right"
        if "eval/bits_per_byte" in scores:
            beside = "".join(f", {name} {rate:.3f}" for name, rate in self.baselines.items())
            told += f", {scores['eval/bits_per_byte']:.3f} bits per byte{beside}"
        self.terminal.say(told)
        return scores

    def _save(self, step: int, state: TrainState, scores: Mapping[str, float]) -> None:
        here = {
            "position": step,  # of the data
            "updates": int(state.num_updates),
            "tokens": token_count(state.tokens),
            "metrics": dict(scores),
        }
        self.checkpoints.save(step, state, {**self.metadata, **here})

    def _tell_saved(self) -> None:
        for step in self.checkpoints.newly_saved():
            self.terminal.say(f"saved checkpoint of step {step}")

    def _wait_for_checkpoints(self) -> None:
        self.checkpoints.wait()
        self._tell_saved()


def _scalars(values: Mapping[str, np.ndarray]) -> Iterator[tuple[str, float]]:
    """What the writers take: a measure of each layer becomes one of as many names."""
    for name, value in values.items():
        if value.ndim == 0:
            yield name, value.item()
        else:
            yield from ((f"{name}/{layer:02d}", each.item()) for layer, each in enumerate(value))


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
