"""The training loop: feed batches, keep one step in flight, log, evaluate, save, stop cleanly.

The host never waits for the step it has just started, only for the one before, so the device
always has work queued; metrics are read when their step is done. What a stage is, the loop does
not know: it gets a `Program`, a batch source and a held-out source.
"""

import dataclasses
import math
import resource
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxtrain.options import option
from jaxtrain.train.checkpoint import Checkpoints
from jaxtrain.train.program import Program
from jaxtrain.train.state import TrainState, token_count
from jaxtrain.train.step import Metrics
from jaxtrain.train.writers import Terminal, Writer
from jaxtrain.types import LossSums

LN2 = math.log(2)


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


class HeldOut(Protocol):
    """A fixed set to measure the loss on."""

    text_bytes: int | None  # of UTF-8 text in the set; None where it is not predicted as a whole

    def batches(self, batch_size: int, rows: slice) -> Iterable[Any]:
        """The whole set once, in batches of any size; the last one filled."""
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

    def run(self, state: TrainState) -> TrainState:
        """Trains, then waits until the last checkpoint is whole.

        Raises:
          StoppedBySignal: after saving, when SIGTERM or Ctrl-C asked to stop.
          RuntimeError: after `max_skips` skipped updates in a row.
        """
        step = int(state.step)
        if self.owes_scores:
            self._evaluate(step, state)
        clock = _Clock()
        in_flight: tuple[int, Metrics] | None = None
        with _Signals() as signals:
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

    def _batches(self, start: int, clock: "_Clock"):
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

    def _finish(self, step: int, metrics: Metrics, clock: "_Clock") -> None:
        """Waits for a step and reports it if it is due."""
        jax.block_until_ready(metrics["loss"])
        clock.tick()
        if step % self.config.log_every == 0 or step == self.config.num_steps:
            self._report(step, metrics, clock)
        self._check_skips(step, metrics)

    def _report(self, step: int, metrics: Metrics, clock: "_Clock") -> None:
        values = {name: np.asarray(value) for name, value in jax.device_get(metrics).items()}
        tokens = token_count(values.pop("tokens"))
        scalars = {name: value.item() for name, value in values.items()}
        scalars |= clock.rates(tokens, scalars["batch_tokens"])
        model_flops = scalars["tokens_per_sec"] * self.flops_per_token
        scalars |= {"tokens": tokens, "mfu": model_flops / self.peak_flops, **memory()}
        self.writer.write_scalars(step, scalars)
        self.terminal.step(step, scalars)

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
        told = f"step {step} held-out: {scores['eval/loss']:.4f} nats per token"
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


def total_sums(
    program: Program,
    state: TrainState,
    heldout: HeldOut,
    batch_size: int,
    frozen: Mapping[str, Any] | None = None,
) -> LossSums:
    """Sums over a whole held-out set, float64 on the host: independent of the batch size."""
    totals: Any = None
    for batch in heldout.batches(batch_size, program.local_rows(batch_size)):
        sums = program.eval_step(state, frozen or {}, program.put(batch, batch_size))
        sums = jax.tree.map(np.float64, jax.device_get(sums))
        totals = sums if totals is None else jax.tree.map(np.add, totals, sums)
    return totals


def mean_scores(*sets: tuple[LossSums, int | None]) -> dict[str, float]:
    """Means over one or more held-out sets together, each as (sums, UTF-8 bytes of text or None).

    There are bits per byte only where every byte is predicted: not in masked-LM.
    """
    sums = jax.tree.map(lambda *parts: sum(parts), *(each for each, _ in sets))
    means = {name: float(total / max(n, 1)) for name, (total, n) in sums.metric_sums.items()}
    nats = sums.metric_sums.get("nll", (sums.loss_sum, sums.weight_sum))[0]
    num_bytes = [size for _, size in sets if size is not None]
    rate = (
        {"bits_per_byte": float(nats / LN2 / sum(num_bytes))} if len(num_bytes) == len(sets) else {}
    )
    return {
        "loss": float(sums.loss_sum / sums.weight_sum),
        **means,
        **rate,
        "target_weight": float(sums.weight_sum),
    }


class StoppedBySignal(Exception):
    """The run was asked to stop and has saved."""

    def __init__(self, number: int, step: int):
        self.number = number
        super().__init__(f"stopped by {signal.Signals(number).name} at step {step}; saved")


class _Signals:
    """Notes SIGTERM and SIGINT; a second SIGINT interrupts at once."""

    #: Steps between agreements of several processes, each of which waits for the step under way.
    _AGREE_EVERY = 10

    def __init__(self):
        self._number = 0

    def __enter__(self):
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _frame):
        if self._number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self._number = number

    def stop_at(self, step: int) -> int:
        """The signal to stop for after this step, or 0; the same on every process."""
        if jax.process_count() == 1:
            return self._number
        if step % self._AGREE_EVERY:
            return 0
        return int(np.max(multihost_utils.process_allgather(np.int32(self._number))))


class _Clock:
    """Time and data wait per step, without compilation, evaluation and saves."""

    def __init__(self):
        self._wait = 0.0
        self._last: float | None = None  # when the last step ended; None: do not count the next
        self._secs: list[float] = []  # of the steps since the last report
        self._num_steps = 0  # since the last report, counted or not
        self._tokens: int | None = None  # at the last report
        self._began = time.perf_counter()

    def waiting(self, batches: Iterable[Any]):
        """Passes batches on and adds up the time they took to come."""
        batches = iter(batches)
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self._wait += time.perf_counter() - start
            yield batch

    def expect_compilation(self) -> None:
        """The next step compiles: its time is not counted."""
        self._last = None

    def tick(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        if self._last is not None:
            self._secs.append(now - self._last)
        self._last = now
        self._num_steps += 1

    def restart(self) -> None:
        """Something else than a step has ended (evaluation, save)."""
        self._last = time.perf_counter()

    def rates(self, tokens: int, batch_tokens: float) -> dict[str, float]:
        """Means per step since the last report; `tokens` is the running total.

        A report whose only step is the first one has nothing but that step, compilation included.
        """
        secs = float(np.mean(self._secs)) if self._secs else time.perf_counter() - self._began
        new = tokens - self._tokens if self._tokens is not None else batch_tokens * self._num_steps
        rates = {
            "step_secs": secs,
            "tokens_per_sec": new / self._num_steps / secs,
            "data_wait_secs": self._wait / self._num_steps,
        }
        self._wait, self._secs, self._num_steps, self._tokens = 0.0, [], 0, tokens
        return rates


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def memory() -> dict[str, int]:
    """Peak memory so far: of the fullest local device, or of the process where devices are CPUs."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
    if peaks:
        return {"device_memory_bytes": max(peaks)}
    return {"host_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
