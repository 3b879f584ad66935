"""The k-th smallest of numbers that lie in many files, in memory that does not grow with them.

Numbers are unsigned 64-bit integers in columns; a row is compared column by column. Each pass over
the files counts sixteen bits of one column among the rows that agree with what is known so far, as
a radix sort would, so the answer is exact and depends on no order.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from jaxtrain.corpus.step import load_observed

_DIGIT_BITS = 16
_SHIFTS = (48, 32, 16, 0)


def ascending(values: np.ndarray) -> np.ndarray:
    """Integers in the order of the floats `values`, NaN last."""
    bits = np.where(np.isnan(values), np.inf, values + 0.0).astype(np.float64).view(np.uint64)
    sign = bits >> np.uint64(63)
    return bits ^ np.where(sign == 1, np.uint64(2**64 - 1), np.uint64(1 << 63))


def kth_smallest(paths: Sequence[pathlib.Path], columns: Sequence[str], k: int) -> tuple[int, ...]:
    """The k-th smallest row (from 1) of the uint64 columns of all files, one value a column."""
    found: list[int] = []
    for _ in columns:
        value = 0
        for shift in _SHIFTS:
            counts = np.zeros(1 << _DIGIT_BITS, np.int64)
            for path in paths:
                counts += _digits(path, columns, found, value, shift)
            below = np.cumsum(counts)
            digit = int(np.searchsorted(below, k))
            k -= int(below[digit - 1]) if digit else 0
            value |= digit << shift
        found.append(value)
    return tuple(found)


def at_most(rows: Sequence[np.ndarray], limit: Sequence[int]) -> np.ndarray:
    """Which rows, given by columns, are not above `limit`."""
    result = np.ones(len(rows[0]), bool)
    for column, value in zip(reversed(rows), reversed(limit), strict=True):
        result = (column < np.uint64(value)) | ((column == np.uint64(value)) & result)
    return result


def _digits(
    path: pathlib.Path, columns: Sequence[str], found: Sequence[int], value: int, shift: int
) -> np.ndarray:
    """How often each digit comes at `shift` among the rows that begin as `found` and `value`."""
    arrays = load_observed(path)
    column = arrays[columns[len(found)]]
    agrees = np.ones(len(column), bool)
    for name, known in zip(columns, found, strict=False):
        agrees &= arrays[name] == np.uint64(known)
    if shift < _SHIFTS[0]:
        above = np.uint64(shift + _DIGIT_BITS)
        agrees &= (column >> above) == (np.uint64(value) >> above)
    digits = (column[agrees] >> np.uint64(shift)) & np.uint64((1 << _DIGIT_BITS) - 1)
    return np.bincount(digits.astype(np.int64), minlength=1 << _DIGIT_BITS)
