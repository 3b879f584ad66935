"""What a step costs: time, data wait and memory, without compilation, evaluation and saves."""

import resource
import time
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np


class Clock:
    """Time and data wait per step, without compilation, evaluation and saves."""

    def __init__(self):
        self._wait = 0.0
        self._last: float | None = None  # when the last step ended; None: do not count the next
        self._secs: list[float] = []  # of the steps since the last report
        self._num_steps = 0  # since the last report, counted or not
        self._tokens: int | None = None  # at the last report
        self._latest = 0.0  # seconds per step of the last report that counted one
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

        Where every step since then compiled, the rate is that of the report before; the very first
        step alone has its whole time, compilation included.
        """
        if self._secs:
            self._latest = float(np.mean(self._secs))
        secs = self._latest or time.perf_counter() - self._began
        new = tokens - self._tokens if self._tokens is not None else batch_tokens * self._num_steps
        rates = {
            "step_secs": secs,
            "tokens_per_sec": new / self._num_steps / secs,
            "data_wait_secs": self._wait / self._num_steps,
        }
        self._wait, self._secs, self._num_steps, self._tokens = 0.0, [], 0, tokens
        return rates


def memory() -> dict[str, int]:
    """Peak memory so far: of the fullest local device, or of the process where devices are CPUs."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
    if peaks:
        return {"device_memory_bytes": max(peaks)}
    return {"host_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
