"""SIGTERM and Ctrl-C: noted, answered between two steps by every process alike."""

import signal

import jax
import numpy as np
from jax.experimental import multihost_utils


class StoppedBySignal(Exception):
    """The run was asked to stop and has saved."""

    def __init__(self, number: int, step: int):
        self.number = number
        super().__init__(f"stopped by {signal.Signals(number).name} at step {step}; saved")


class Signals:
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
