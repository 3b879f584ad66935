"""`find` and `mask`: personal data and credentials in a text, and the text without them.

Offsets are those of Python strings (code points) in the text as given. Where two finds overlap, the
kind that comes first in `KINDS` has it.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxtrain.corpus.pii import credentials, internet, numbers
from jaxtrain.corpus.pii.digits import Run, digit_runs, fold
from jaxtrain.corpus.pii.phone import PhoneNumbers

_Finder = Callable[[str, Sequence[Run]], Iterator[tuple[int, int]]]

# In order of priority: blocks first, then what a check digit proves, phone numbers last.
PLACEHOLDERS = {
    "private key": "<PRIVATE_KEY>",
    "api key": "<API_KEY>",
    "email": "<EMAIL>",
    "iban": "<IBAN>",
    "chinese id": "<CHINESE_ID>",
    "bank card": "<BANK_CARD>",
    "ip address": "<IP_ADDRESS>",
    "phone": "<PHONE>",
}
KINDS = tuple(PLACEHOLDERS)

# The three regions whose numbers English and Chinese web text holds most of.
REGIONS = ("US", "GB", "CN")


class Span(NamedTuple):
    """One find: `text[start:end]` is of the kind `kind`."""

    start: int
    end: int
    kind: str


class PersonalData:
    """Finds `kinds` of personal data; phone numbers without country code are those of `regions`."""

    def __init__(self, kinds: Sequence[str] = KINDS, regions: Sequence[str] = REGIONS):
        finders = _finders(regions)
        self._finders = [(kind, finders[kind]) for kind in KINDS if kind in kinds]

    def find(self, text: str) -> list[Span]:
        """All finds in order, none overlapping another; none is left once they are masked.

        What a mask lays bare (a number that touched another's digits) is found in the same call.
        """
        spans: list[Span] = []
        while fresh := self._scan(mask(text, spans)):
            if not spans:
                spans = fresh
                continue
            moved = [_in_original(span, spans) for span in fresh]
            inside = [s for s in spans if not any(m.start <= s.start < m.end for m in moved)]
            spans = sorted(inside + moved)
        return spans

    def _scan(self, text: str) -> list[Span]:
        folded = fold(text)
        runs = digit_runs(folded)
        taken: list[Span] = []
        for kind, finder in self._finders:
            for start, end in finder(folded, runs):
                _take(taken, Span(start, end, kind))
        return taken


def find(text: str) -> list[Span]:
    """All finds of every kind in order, none overlapping another."""
    return _EVERYTHING.find(text)


def mask(text: str, spans: Iterable[Span]) -> str:
    """`text` with each span, in order and apart, replaced by its kind's placeholder."""
    pieces, done = [], 0
    for start, end, kind in spans:
        pieces += (text[done:start], PLACEHOLDERS[kind])
        done = end
    return "".join((*pieces, text[done:])) if pieces else text


def _finders(regions: Sequence[str]) -> dict[str, _Finder]:
    return {
        "private key": lambda text, runs: credentials.private_keys(text),
        "api key": lambda text, runs: credentials.api_keys(text),
        "email": lambda text, runs: internet.emails(text),
        "iban": lambda text, runs: numbers.ibans(text),
        "chinese id": numbers.chinese_ids,
        "bank card": numbers.bank_cards,
        "ip address": internet.ip_addresses,
        "phone": PhoneNumbers(regions),
    }


def _take(taken: list[Span], span: Span) -> None:
    """Puts `span` in its place unless it overlaps one that is there."""
    place = bisect.bisect_left(taken, span)
    if place > 0 and taken[place - 1].end > span.start:
        return
    if place < len(taken) and taken[place].start < span.end:
        return
    taken.insert(place, span)


def _in_original(span: Span, spans: Sequence[Span]) -> Span:
    """A span of the masked text in offsets of the text before `spans` were masked."""
    start, end = span.start, span.end
    for before in spans:  # in order, so `start` and `end` are right up to here
        grown = before.end - before.start - len(PLACEHOLDERS[before.kind])
        start += grown if start > before.start else 0
        end += grown if end > before.start else 0
    return Span(start, end, span.kind)


_EVERYTHING = PersonalData()
