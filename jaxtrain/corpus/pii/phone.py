"""Telephone numbers: candidates by shape, then judged by the numbering plans of `phonenumbers`.

A candidate is international (`+` and country code) or national, in the form that people of one of
the given regions write. `phonenumbers` knows which digits are assigned but takes dates, prices and
serial numbers for national numbers; so one of these has to be grouped as its region groups, or
to be a mobile number, or to follow a word such as "call". After a label ("Phone:") any number is
one, assigned or not.
"""

import re
from collections.abc import Iterator, Sequence

import phonenumbers
from phonenumbers import PhoneMetadata, PhoneNumberFormat, PhoneNumberType

from jaxtrain.corpus.pii.digits import Run, digits_of, stands_alone

_MIN_DIGITS, _MAX_DIGITS = 7, 15  # E.164 allows 15; shorter ones serve everybody, 911
_MIN_NATIONAL_DIGITS = 9  # of numbers without label or country code
_MAX_PIECES = 8  # of a run that holds more than one number; longer ones are tables
_PIECE = re.compile(r"[^ /]+")
_EXTENSION = re.compile(r" ?(?:x|ext\.?|#|转|轉) ?[0-9]{1,5}(?![0-9A-Za-z_])", re.IGNORECASE)
_CALL = re.compile(
    r"tel|phone|\bph\b|call|mobile|\bcell|fax|whatsapp|\bsms\b|\btext\b|contact|dial|hotline|"
    r"电话|手机|联系|热线|传真|致电|微信",
    re.IGNORECASE,
)
_CALL_SPAN = 30  # characters before the number
_LABEL = re.compile(
    r"(?:tel|telephone|phone|\bph|mobile|cell|fax|whatsapp|hotline|电话|手机|传真|热线)"
    r"(?: ?(?:number|no\.?|nr\.?|号码?))?\s?[:：]\s{0,2}\Z",
    re.IGNORECASE,
)
_NO_NUMBER_BEFORE = frozenset("/=&%$€£¥@#_")  # a path, a query, a price, a tag
_DATE = re.compile(r"(?:19|20)[0-9]{2}([-./ ])[0-9]{1,2}\1[0-9]{1,2}(?![0-9])")
_DECIMAL = re.compile(r"\+?[0-9]+\.[0-9]+")
_YEARS = re.compile(r"(?:19|20)[0-9]{2} ?[-/ ] ?(?:19|20)[0-9]{2}")


class PhoneNumbers:
    """Finds phone numbers; national forms of `regions` (ISO 3166 codes, "US") only."""

    def __init__(self, regions: Sequence[str]):
        self._plans = [_Plan(region) for region in regions]

    def __call__(self, text: str, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
        for start, end in runs:
            start = _with_opening(text, start, end)
            if end - start >= _MIN_DIGITS:
                yield from self._in_run(text, start, end)

    def _in_run(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        if self._is_number(text, start, end):
            yield start, _with_extension(text, end)
            return
        pieces = _pieces(text, start, end)
        first, last = 0, len(pieces)
        if last > _MAX_PIECES:
            return
        while first < len(pieces):
            if first < last and self._is_number(text, pieces[first][0], pieces[last - 1][1]):
                yield pieces[first][0], _with_extension(text, pieces[last - 1][1])
                first, last = last, len(pieces)
            elif last > first + 1:
                last -= 1
            else:
                first, last = first + 1, len(pieces)

    def _is_number(self, text: str, start: int, end: int) -> bool:
        candidate = text[start:end]
        if "." in candidate and " " in candidate and "+" not in candidate and ")" not in candidate:
            return False  # decimal numbers side by side
        digits = digits_of(candidate)
        if not _MIN_DIGITS <= len(digits) <= _MAX_DIGITS or not _is_free(text, start, end):
            return False
        if _DECIMAL.fullmatch(candidate):
            return False
        if candidate.startswith(("+", "(+")):
            return _is_international(digits, grouped="+" + digits != candidate)
        if _DATE.match(candidate) or _YEARS.match(candidate):
            return False
        if candidate.startswith("00") and digits != candidate:
            return _is_international(digits[2:], grouped=True)
        before = text[max(0, start - _CALL_SPAN) : start]
        if _LABEL.search(before):
            return True
        if len(digits) < _MIN_NATIONAL_DIGITS or " - " in candidate:  # 1600 - 1500
            return False
        introduced = _CALL.search(before) is not None
        return any(plan.holds(candidate, digits, introduced) for plan in self._plans)


class _Plan:
    """The numbering plan of one region."""

    def __init__(self, region: str):
        metadata = PhoneMetadata.metadata_for_region(region, None)
        description = metadata and metadata.general_desc
        if metadata is None or description is None:
            raise ValueError(
                f"regions: {region!r} is no region with telephone numbers; give ISO 3166 codes "
                "in capitals, such as US or CN"
            )
        self._region = region
        self._prefix = metadata.national_prefix or ""
        self._is_north_american = metadata.country_code == 1  # one form for all: 3-3-4
        lengths = set(description.possible_length)
        self._lengths = lengths | {length + len(self._prefix) for length in lengths}

    def holds(self, candidate: str, digits: str, introduced: bool) -> bool:
        """Whether `candidate` is a number of this plan in the form in which it is written.

        Args:
          candidate: digits and separators.
          digits: its digits alone.
          introduced: whether the text before speaks of telephones.
        """
        if len(digits) not in self._lengths or ("/" in candidate and not introduced):
            return False
        try:
            number = phonenumbers.parse(digits, self._region)
        except phonenumbers.NumberParseException:
            return False
        if not phonenumbers.is_valid_number(number):
            return False
        written = phonenumbers.format_number(number, PhoneNumberFormat.NATIONAL)
        trunk = digits_of(written)
        if digits not in (trunk, self._prefix + trunk):
            return False  # without the trunk prefix nobody could dial it
        if digits == candidate:
            return introduced or phonenumbers.number_type(number) == PhoneNumberType.MOBILE
        ends = {end + len(digits) - len(trunk) for end in _group_ends(written)}
        groups = _group_ends(candidate)
        if len(digits) > len(trunk):
            ends.add(len(self._prefix))
        if self._is_north_american:
            return groups - {len(self._prefix)} == ends - {len(self._prefix)}
        return bool(ends & groups)


def _group_ends(written: str) -> set[int]:
    """After how many digits each group but the last ends."""
    groups = [digits_of(group) for group in re.split(r"[^0-9]+", written)]
    ends, total = set(), 0
    for group in groups:
        total += len(group)
        ends.add(total)
    return ends - {0, total}


def _with_opening(text: str, start: int, end: int) -> int:
    """Where the number begins whose first digit is at `start`: at its `+`, at a `(` it closes."""
    closes = text.count(")", start, end) > text.count("(", start, end)
    for opening in ("(+", "+(", "(") if closes else ():
        if start >= len(opening) and text.startswith(opening, start - len(opening)):
            return start - len(opening)
    return start - 1 if text[max(0, start - 1) : start] == "+" else start


def _with_extension(text: str, end: int) -> int:
    extension = _EXTENSION.match(text, end)
    return extension.end() if extension else end


def _is_free(text: str, start: int, end: int) -> bool:
    """Whether a number begins and ends here: no part of a word, a path, an amount."""
    before = text[start - 1 : start]
    if before in _NO_NUMBER_BEFORE or (before == "-" and text[start - 2 : start - 1].isalnum()):
        return False
    if text[end : end + 1] in ("%", "=") or (
        text[end : end + 1] == "-" and text[end + 1 : end + 2].isdigit()
    ):
        return False
    after = end if _EXTENSION.match(text, end) else end + 2
    return stands_alone(text[:after], start, end)


def _is_international(digits: str, grouped: bool) -> bool:
    """Whether `digits` begin with a country code and are assigned, or in groups could be."""
    try:
        number = phonenumbers.parse("+" + digits, None)
    except phonenumbers.NumberParseException:
        return False
    if grouped:
        return phonenumbers.is_possible_number(number)
    return phonenumbers.is_valid_number(number)


def _pieces(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The parts of a run between spaces and slashes."""
    return [match.span() for match in _PIECE.finditer(text, start, end)]
