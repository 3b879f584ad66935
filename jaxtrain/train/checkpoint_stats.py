"""Numbers about saved leaves and about what differs between two checkpoints.

Sums run in float64, chunk by chunk: memory does not grow with the size of a leaf.
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterator

import numpy as np

from jaxtrain.train.checkpoint_read import read_chunks, read_record

_BLOCK = 2**20  # elements that are converted to float64 at a time


@dataclasses.dataclass(frozen=True)
class Stats:
    """Of one leaf, over its finite elements; extremes are None where it has none."""

    norm: float
    min: float | None
    max: float | None
    non_finite: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """Of one leaf between steps A and B, or why it was not compared."""

    path: str
    not_compared: str | None = None  # in one step only, or of another shape or dtype
    num_differing: int = 0  # elements that differ in any bit
    max_abs: float = 0.0  # largest |B - A| of those that are finite in both
    rel_norm: float | None = 0.0  # ‖B - A‖ / ‖A‖ of the same ones; None where only ‖A‖ is 0
    non_finite: int = 0  # of the differing ones, those not finite in A or B

    @property
    def is_equal(self) -> bool:
        """Whether A and B have the same bits."""
        return not (self.not_compared or self.num_differing)


def measure(directory: pathlib.Path, step: int, path: str) -> Stats:
    """Norm, extremes and non-finite count of one leaf."""
    square_sum, low, high, non_finite = 0.0, math.inf, -math.inf, 0
    for (values,) in _blocks(directory, path, step):
        wide = values.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        non_finite += wide.size - finite.size
        if finite.size:
            square_sum += float(finite @ finite)
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    has_finite = low <= high
    return Stats(
        math.sqrt(square_sum), low if has_finite else None, high if has_finite else None, non_finite
    )


def compare(directory: pathlib.Path, step_a: int, step_b: int) -> Iterator[Difference]:
    """All leaves of two checkpoints, in order of their paths."""
    leaves_a = read_record(directory, step_a).leaves
    leaves_b = read_record(directory, step_b).leaves
    for path in sorted(leaves_a.keys() | leaves_b.keys()):
        if path not in leaves_b:
            yield Difference(path, f"only in step {step_a}")
        elif path not in leaves_a:
            yield Difference(path, f"only in step {step_b}")
        elif str(leaves_a[path]) != str(leaves_b[path]):
            yield Difference(path, f"{leaves_a[path]} became {leaves_b[path]}")
        else:
            yield _compare_leaf(directory, step_a, step_b, path)


def _compare_leaf(directory: pathlib.Path, step_a: int, step_b: int, path: str) -> Difference:
    num_differing, non_finite, max_abs, square_sum_a, square_sum = 0, 0, 0.0, 0.0, 0.0
    for a, b in _blocks(directory, path, step_a, step_b):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        differing, finite = _bits(a) != _bits(b), np.isfinite(wide_a) & np.isfinite(wide_b)
        num_differing += int(np.count_nonzero(differing))
        non_finite += int(np.count_nonzero(differing & ~finite))
        wide_a, wide_b = wide_a[finite], wide_b[finite]
        change = wide_b - wide_a
        max_abs = max(max_abs, float(np.abs(change).max(initial=0.0)))
        square_sum_a += float(wide_a @ wide_a)
        square_sum += float(change @ change)
    rel_norm = math.sqrt(square_sum / square_sum_a) if square_sum_a else None
    return Difference(
        path, None, num_differing, max_abs, rel_norm if square_sum else 0.0, non_finite
    )


def _blocks(directory: pathlib.Path, path: str, *steps: int) -> Iterator[list[np.ndarray]]:
    """The same flat part of a leaf in each step, small enough for temporaries in float64."""
    for chunks in read_chunks(directory, path, *steps):
        flat = [chunk.reshape(-1) for chunk in chunks]
        for start in range(0, flat[0].size, _BLOCK):
            yield [values[start : start + _BLOCK] for values in flat]


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.dtype.itemsize}")
