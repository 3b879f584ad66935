"""Held-out scores: sums over a whole set, divided once at the end."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from jaxtrain.train.program import Program
from jaxtrain.train.state import TrainState
from jaxtrain.types import LossSums

LN2 = math.log(2)


class HeldOut(Protocol):
    """A fixed set to measure the loss on."""

    text_bytes: int | None  # of UTF-8 text in the set; None where it is not predicted as a whole

    def batches(self, batch_size: int, rows: slice) -> Iterable[Any]:
        """The whole set once, in batches of any size; the last one filled."""
        ...


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
