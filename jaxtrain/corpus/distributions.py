"""How lengths, scores and labels of documents are spread: counts that add up exactly.

Two distributions over parts of a corpus add to the distribution over the whole, whatever the parts
and their order: bins are fixed in advance, and no float is ever summed.
"""

import math
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

_BINS_BELOW_ONE = 20
_MAX_VALUES = 300  # more labels than that are an identifier, not a classification
_ROOT_HALF = math.sqrt(0.5)


def number_bin(value: float) -> int:
    """The bin of a finite number: 20 equal ones for [0, 1], half octaves above, mirrored below 0.

    Scores and probabilities fall into the equal ones, perplexities and counts into the others.
    """
    if value < 0:
        return -1 - number_bin(-value)
    if value <= 1:
        return min(int(value * _BINS_BELOW_ONE), _BINS_BELOW_ONE - 1)
    mantissa, exponent = math.frexp(value)  # exact, unlike a logarithm at a power of 2
    return _BINS_BELOW_ONE + 2 * (exponent - 1) + (mantissa >= _ROOT_HALF)


def number_bin_edges(index: int) -> tuple[float, float]:
    """Lowest and highest value of a bin."""
    if index < 0:
        low, high = number_bin_edges(-1 - index)
        return -high, -low
    if index < _BINS_BELOW_ONE:
        return index / _BINS_BELOW_ONE, (index + 1) / _BINS_BELOW_ONE
    halves = index - _BINS_BELOW_ONE
    return 2 ** (halves / 2), (2 ** ((halves + 1) / 2) if halves < 2047 else math.inf)


def length_bin(num_bytes: int) -> int:
    """k for lengths of 2^(k−1) to 2^k − 1 bytes; 0 for nothing."""
    return num_bytes.bit_length()


class Distribution:
    """Counts of documents by the value of one field: binned numbers, or labels as they are.

    Labels are given up, for good, where there are more than a classification has.
    """

    def __init__(self) -> None:
        self.bins: Counter[int] = Counter()
        self.values: Counter[str] = Counter()
        self.too_many_values = False
        self.missing = 0  # None, NaN, an infinite number, a list …

    def add(self, value: Any) -> None:
        """Counts one document."""
        if isinstance(value, bool):
            self.values[str(value).lower()] += 1
        elif isinstance(value, str):
            if not self.too_many_values:
                self.values[value] += 1
                self._give_up_on_identifiers()
        elif isinstance(value, (int, float)) and abs(value) <= sys.float_info.max:  # not NaN
            self.bins[number_bin(value)] += 1
        else:
            self.missing += 1

    def __add__(self, other: "Distribution") -> "Distribution":
        total = Distribution()
        total.bins = self.bins + other.bins
        total.values = self.values + other.values
        total.missing = self.missing + other.missing
        total.too_many_values = self.too_many_values or other.too_many_values
        total._give_up_on_identifiers()
        return total

    def _give_up_on_identifiers(self) -> None:
        if self.too_many_values or len(self.values) > _MAX_VALUES:
            self.too_many_values = True
            self.values.clear()

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON values, in an order of their own."""
        return {
            "bins": {str(index): count for index, count in sorted(self.bins.items())},
            "values": dict(sorted(self.values.items())),
            "too_many_values": self.too_many_values,
            "missing": self.missing,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Distribution":
        """The distribution that `to_json` wrote."""
        made = cls()
        made.bins = Counter({int(index): count for index, count in value["bins"].items()})
        made.values = Counter(value["values"])
        made.too_many_values = value["too_many_values"]
        made.missing = value["missing"]
        return made
