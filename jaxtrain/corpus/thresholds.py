"""Thresholds of filters: refused where they can judge nothing, compared where they can.

Every threshold of a step may be None, which turns its rule off; a number that has the same effect
is refused, since it is more often a share stated the wrong way round than a wish. Names agree with
the comparison: a document is dropped above a `max_…` and below a `min_…`.
"""

import math
from typing import Any, NamedTuple

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome

_OFF = "None turns the rule off"


class Verdict(NamedTuple):
    """Why a document is dropped."""

    rule: str
    because: str  # with the value and the threshold


def judged(document: Document, verdict: Verdict | None) -> Outcome:
    """A document dropped by a verdict, or kept as it is."""
    return Outcome(document, verdict.rule, verdict.because) if verdict else Outcome(document)


def above(rule: str, what: str, value: float, limit: float | None) -> Verdict | None:
    """A verdict where the value is above the limit."""
    if limit is None or value <= limit:
        return None
    return Verdict(rule, f"{what} {_exactly(value, limit)} > {limit}")


def below(rule: str, what: str, value: float, limit: float | None) -> Verdict | None:
    """A verdict where the value is below the limit."""
    if limit is None or value >= limit:
        return None
    return Verdict(rule, f"{what} {_exactly(value, limit)} < {limit}")


def reaching(rule: str, what: str, value: float, limit: float | None) -> Verdict | None:
    """A verdict where the value is at the limit or above."""
    if limit is None or value < limit:
        return None
    return Verdict(rule, f"{what} {_exactly(value, limit)} ≥ {limit}")


def not_above(rule: str, what: str, value: float, limit: float | None) -> Verdict | None:
    """A verdict where the value is at the limit or below."""
    if limit is None or value > limit:
        return None
    return Verdict(rule, f"{what} {_exactly(value, limit)} ≤ {limit}")


def require_max_frac(config: Any, *names: str) -> None:
    """Fractions that a value can be above: in [0, 1)."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value < 1:
            why = "no fraction is above it" if value >= 1 else "no fraction is below 0"
            raise ValueError(f"{name}={value}: {why}; give a number in [0, 1); {_OFF}")


def require_min_frac(config: Any, *names: str) -> None:
    """Fractions that a value can be below: in (0, 1]."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value <= 1:
            why = "no fraction is below it" if value <= 0 else "every fraction is below it"
            raise ValueError(f"{name}={value}: {why}; give a number in (0, 1]; {_OFF}")


def require_positive(config: Any, *names: str) -> None:
    """Counts and lengths: finite and above 0."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be above 0 and finite; {_OFF}")


def require_order(config: Any, low: str, high: str) -> None:
    """A minimum must not be above its maximum."""
    least, most = getattr(config, low), getattr(config, high)
    if least is not None and most is not None and least > most:
        raise ValueError(f"{low}={least} is above {high}={most}: nothing lies between; swap them")


def _exactly(value: float, limit: float) -> str:
    """Four digits, all of them where four would show the limit itself."""
    short = f"{value:.4g}"
    return short if short != f"{limit:.4g}" and isinstance(value, float) else f"{value}"
