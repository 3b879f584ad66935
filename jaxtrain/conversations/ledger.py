"""What became of rows: in = out + dropped, by reason, with the first row of each."""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jaxtrain.conversations.examples import Example
from jaxtrain.conversations.forms import BadRow, Dropped
from jaxtrain.conversations.rows import Row

_ENOUGH_TO_JUDGE = 1000  # rows, before a share of bad ones stops a pass half-way


@dataclasses.dataclass
class Ledger:
    """What became of the rows."""

    max_bad_frac: float
    what: str = "conversations"  # that the rows are to be, in errors
    rows_in: int = 0
    rows_out: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    cut: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    bad: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    dropped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    first: dict[str, str] = dataclasses.field(default_factory=dict)  # reason → the first such row

    def take(self, examples: Sequence[Example]) -> None:
        """Counts a row and what is made of it."""
        self.rows_out += 1
        for example in examples:
            self.tokens += len(example.ids)
            self.trained_tokens += int(example.mask.sum())
        self.cut.update({example.cut for example in examples if example.cut})

    def leave_out(self, error: BadRow | Dropped, row: Row) -> None:
        """Counts a row of which nothing is made."""
        (self.bad if isinstance(error, BadRow) else self.dropped)[error.reason] += 1
        self.first.setdefault(error.reason, f"{row.place}: {error}")

    def check(self, *, done: bool) -> None:
        """Raises a ValueError where too large a share of the rows is bad, or a row is lost."""
        num_bad = self.bad.total()
        enough = done or self.rows_in >= _ENOUGH_TO_JUDGE
        if enough and num_bad > self.max_bad_frac * self.rows_in:
            reason = self.bad.most_common(1)[0][0]
            raise ValueError(
                f"{num_bad:,} of {self.rows_in:,} rows are no {self.what}, more than "
                f"--max_bad_frac={self.max_bad_frac}; {reason}, first {self.first[reason]}. Mend "
                "them, or raise it"
            )
        if not done:
            return
        if not self.rows_out:
            reasons = ", ".join(self._reasons()) or "there are no rows"
            raise ValueError(f"nothing is left to train on, of {self.rows_in:,} rows: {reasons}")
        assert self.rows_in == self.rows_out + num_bad + self.dropped.total(), self

    def lines(self) -> Iterator[str]:
        """For people."""
        left_out = self.bad.total() + self.dropped.total()
        yield f"{self.rows_in:,} rows in = {self.rows_out:,} out + {left_out:,} dropped"
        yield from (f"  dropped: {line}" for line in self._reasons())
        for what, count in sorted(self.cut.items()):
            yield f"  too long, cut by {what}: {count:,}"
        frac = self.trained_tokens / max(self.tokens, 1)
        yield f"{self.trained_tokens:,} of {self.tokens:,} tokens trained ({frac:.1%})"

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "dropped": dict(sorted((self.bad + self.dropped).items())),
            "first": {reason: self.first[reason] for reason in sorted(self.first)},
            "cut": dict(sorted(self.cut.items())),
            "tokens": self.tokens,
            "trained_tokens": self.trained_tokens,
        }

    def _reasons(self) -> Iterator[str]:
        for reason, count in (self.bad + self.dropped).most_common():
            yield f"{count:,} {reason}, first {self.first[reason]}"
