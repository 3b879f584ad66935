"""How long a call takes on the device."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

_NUM_RUNS = 10


def seconds(run: Callable, arguments: Sequence[Any]) -> float:
    """Median of a call, each waited for, after one that compiles and one that warms up."""
    for _ in range(2):
        jax.block_until_ready(run(*arguments))
    taken = []
    for _ in range(_NUM_RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
