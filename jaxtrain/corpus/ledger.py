"""The ledger of a stage that may lose documents: in = out + dropped, by reason.

The source counts what comes in, each step what it drops and why, the writers what goes out.
`check` compares the three, so that a step which loses a document without saying so is found.
"""

import dataclasses
from collections import defaultdict
from typing import Any


@dataclasses.dataclass(frozen=True)
class Amount:
    """A number of documents and of their bytes (UTF-8, or as read where no text came of them)."""

    documents: int = 0
    bytes: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.documents + other.documents, self.bytes + other.bytes)


class Ledger:
    """Counts of one run over a corpus."""

    def __init__(self) -> None:
        self.taken = Amount()
        self.kept: dict[str, Amount] = defaultdict(Amount)
        self.dropped: dict[str, Amount] = defaultdict(Amount)

    def take(self, num_bytes: int) -> None:
        """A document came in."""
        self.taken += Amount(1, num_bytes)

    def keep(self, output: str, num_bytes: int) -> None:
        """A document was written to `output`."""
        self.kept[output] += Amount(1, num_bytes)

    def drop(self, reason: str, num_bytes: int) -> None:
        """A document went no further."""
        self.dropped[reason] += Amount(1, num_bytes)

    def check(self) -> None:
        """Raises AssertionError with the sums where a document is unaccounted for."""
        out = sum([*self.kept.values(), *self.dropped.values()], start=Amount())
        assert self.taken == out, (
            f"ledger: in {self.taken} != out + dropped {out}: {self.to_plain()}"
        )

    def to_plain(self) -> dict[str, Any]:
        """The counts as JSON values, in an order that does not depend on the run."""
        return {
            "in": dataclasses.asdict(self.taken),
            "out": {name: dataclasses.asdict(amount) for name, amount in sorted(self.kept.items())},
            "dropped": {
                name: dataclasses.asdict(amount) for name, amount in sorted(self.dropped.items())
            },
        }

    def table(self) -> str:
        """The counts as lines for a person."""
        rows = [("in", self.taken)]
        rows += [(f"out: {name}", amount) for name, amount in sorted(self.kept.items())]
        rows += [(f"dropped: {name}", amount) for name, amount in sorted(self.dropped.items())]
        return "\n".join(f"{n:<34}{a.documents:>9,} documents{a.bytes:>15,} bytes" for n, a in rows)
