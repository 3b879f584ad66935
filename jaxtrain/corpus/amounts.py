"""What is counted of documents, in forms that add up: amounts, edits, flows through a step."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_OFFSETS_KEPT = 5  # first places in a file
_FILES_KEPT = 100  # of each reason: a source tree may hold a million


@dataclasses.dataclass(frozen=True)
class Amount:
    """A number of documents and of their bytes (UTF-8, or as read where no text came of them)."""

    documents: int = 0
    bytes: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.documents + other.documents, self.bytes + other.bytes)


@dataclasses.dataclass(frozen=True)
class Edited:
    """How many documents a rule changed, and in how many places."""

    documents: int = 0
    occurrences: int = 0

    def __add__(self, other: "Edited") -> "Edited":
        return Edited(self.documents + other.documents, self.occurrences + other.occurrences)


@dataclasses.dataclass
class Flow:
    """What went through a step: taken = kept + dropped, once the edits' bytes are allowed for."""

    taken: Amount = Amount()
    kept: Amount = Amount()
    grown_bytes: int = 0  # what edits added to texts that were kept; below 0 where they cut
    dropped: dict[str, Amount] = dataclasses.field(default_factory=lambda: defaultdict(Amount))
    edits: dict[str, Edited] = dataclasses.field(default_factory=lambda: defaultdict(Edited))

    def __add__(self, other: "Flow") -> "Flow":
        return Flow(
            self.taken + other.taken,
            self.kept + other.kept,
            self.grown_bytes + other.grown_bytes,
            added(Amount, self.dropped, other.dropped),
            added(Edited, self.edits, other.edits),
        )

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON values; rules in alphabetical order."""
        return {
            "taken": dataclasses.asdict(self.taken),
            "kept": dataclasses.asdict(self.kept),
            "grown_bytes": self.grown_bytes,
            "dropped": plain(self.dropped),
            "edits": plain(self.edits),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Flow":
        """The flow that `to_json` wrote."""
        return cls(
            Amount(**value["taken"]),
            Amount(**value["kept"]),
            value["grown_bytes"],
            added(Amount, {rule: Amount(**each) for rule, each in value["dropped"].items()}),
            added(Edited, {rule: Edited(**each) for rule, each in value["edits"].items()}),
        )


def total(flows: Iterable[Flow]) -> Flow:
    """The sum of flows."""
    return sum(flows, start=Flow())


@dataclasses.dataclass(frozen=True)
class Places:
    """Where in a file input was passed by."""

    amount: Amount = Amount()
    offsets: tuple[int, ...] = ()  # the first few, in the file's units: bytes, rows

    def __add__(self, other: "Places") -> "Places":
        offsets = sorted(self.offsets + other.offsets)[:_OFFSETS_KEPT]
        return Places(self.amount + other.amount, tuple(offsets))


@dataclasses.dataclass
class PassedBy:
    """Input that gave no document, for one reason: all of it, and the first files in detail."""

    amount: Amount = Amount()
    files: dict[str, Places] = dataclasses.field(default_factory=dict)  # first by name: exact

    def __add__(self, other: "PassedBy") -> "PassedBy":
        files = sorted(added(Places, self.files, other.files).items())[:_FILES_KEPT]
        return PassedBy(self.amount + other.amount, dict(files))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PassedBy":
        """What `dataclasses.asdict` made of one."""
        files = {
            name: Places(Amount(**each["amount"]), tuple(each["offsets"]))
            for name, each in value["files"].items()
        }
        return cls(Amount(**value["amount"]), files)


def added(start: Callable[[], Value], *parts: Mapping[Key, Value]) -> dict[Key, Value]:
    """Mappings added key by key, each key from `start()` on."""
    sums: dict[Key, Any] = defaultdict(start)
    for part in parts:
        for key, value in part.items():
            sums[key] = sums[key] + value
    return sums


def plain(amounts: Mapping[Key, Any]) -> dict[Key, dict[str, Any]]:
    """The counts under each key as JSON values, ordered by key."""
    ordered = sorted(amounts.items(), key=lambda item: item[0])  # type: ignore[arg-type]
    return {key: dataclasses.asdict(value) for key, value in ordered}
