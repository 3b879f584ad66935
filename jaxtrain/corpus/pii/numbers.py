"""Numbers that carry a check digit: Chinese identity cards, bank cards, IBANs."""

import datetime
import re
from collections.abc import Iterator, Sequence

from jaxtrain.corpus.pii.digits import Run, digits_of, stands_alone

# GB 11643-1999: region (6), birth date (8), order (3), check character (ISO 7064 MOD 11-2).
_CHINESE_ID = re.compile(r"[1-9][0-9]{16}[0-9Xx]")
_CHINESE_ID_WEIGHTS = tuple(pow(2, 17 - place, 11) for place in range(17))
_CHINESE_ID_CHECKS = "10X98765432"
_CHINESE_PROVINCES = frozenset(  # GB/T 2260
    str(code)
    for first, last in (
        (11, 15),
        (21, 23),
        (31, 37),
        (41, 46),
        (50, 54),
        (61, 65),
        (71, 71),
        (81, 83),
    )
    for code in range(first, last + 1)
)

_CARD = re.compile(
    r"[0-9]{12,19}"
    r"|(?<![0-9][ -])(?:[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?:\1[0-9]{1,3})?"
    r"|[0-9]{4}([ -])[0-9]{6}\2[0-9]{4,5})(?![ -]?[0-9]{4})"
)
# Issuer ranges of ISO/IEC 7812: first and last prefix, lengths. "Bare" ranges say little (a German
# article number is 13 digits with a 4 in front), so there the text before must speak of a card.
_ISSUERS = (
    ("4", "4", (16, 19)),  # Visa
    ("51", "55", (16,)),  # Mastercard
    ("2221", "2720", (16,)),  # Mastercard
    ("34", "34", (15,)),  # American Express
    ("37", "37", (15,)),  # American Express
    ("6011", "6011", (16, 19)),  # Discover
    ("644", "659", (16, 19)),  # Discover
    ("3528", "3589", (16,)),  # JCB
    ("300", "305", (14,)),  # Diners Club
    ("3095", "3095", (14,)),  # Diners Club
    ("36", "36", (14,)),  # Diners Club
    ("38", "39", (14,)),  # Diners Club
    ("62", "62", (16, 17, 18, 19)),  # UnionPay
    ("2200", "2204", (16,)),  # Mir
)
_BARE_ISSUERS = (
    ("4", "4", (13,)),  # Visa, until the 1990s
    ("1800", "1800", (15,)),  # JCB
    ("2131", "2131", (15,)),  # JCB
    ("50", "50", (12, 13, 14, 15, 16, 17, 18, 19)),  # Maestro
    ("56", "58", (12, 13, 14, 15, 16, 17, 18, 19)),  # Maestro
    ("6304", "6304", (12, 13, 14, 15, 16, 17, 18, 19)),  # Maestro
    ("6759", "6763", (12, 13, 14, 15, 16, 17, 18, 19)),  # Maestro
)
_CARD_WORDS = re.compile(r"card|credit|debit|visa|maestro|jcb|\bcc\b|卡", re.IGNORECASE)
_CARD_WORDS_SPAN = 40  # characters before the number

# Two letters of the country, two check digits, then letters and digits, in fours or unbroken.
_IBAN = re.compile(
    r"[0-9][0-9](?<=[A-Za-z]{2}[0-9]{2})(?:[A-Za-z0-9]{11,30}|(?: [A-Za-z0-9]{4}){2,7}"
    r"(?: [A-Za-z0-9]{1,3})?)"
)
_IBAN_LENGTHS = {  # ISO 13616, the registry's release of 2024
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}


def chinese_ids(text: str, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """Resident identity card numbers of 18 places: region, birth date and check character."""
    for start, end in runs:
        if end - start < 17:
            continue
        for match in _CHINESE_ID.finditer(text, start, min(end + 1, len(text))):
            if stands_alone(text, *match.span()) and _is_chinese_id(match[0]):
                yield match.span()


def _is_chinese_id(number: str) -> bool:
    if number[:2] not in _CHINESE_PROVINCES or not "1900" <= number[6:10] <= "2099":
        return False
    try:
        datetime.date(int(number[6:10]), int(number[10:12]), int(number[12:14]))
    except ValueError:
        return False
    total = sum(int(d) * w for d, w in zip(number[:17], _CHINESE_ID_WEIGHTS, strict=True))
    return _CHINESE_ID_CHECKS[total % 11] == number[17].upper()


def bank_cards(text: str, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """Payment card numbers, unbroken or in groups: an issuer's range and length, Luhn's check."""
    for run_start, run_end in runs:
        if run_end - run_start < 12:
            continue
        for match in _CARD.finditer(text, run_start, run_end):
            start, end = match.span()
            number = digits_of(match[0])
            if not stands_alone(text, start, end) or not _passes_luhn(number):
                continue
            before = text[max(0, start - _CARD_WORDS_SPAN) : start]
            if _issued(number, _ISSUERS) or (
                _issued(number, _BARE_ISSUERS) and _CARD_WORDS.search(before)
            ):
                yield start, end


def _issued(number: str, issuers: Sequence[tuple[str, str, tuple[int, ...]]]) -> bool:
    return any(
        len(number) in lengths and first <= number[: len(first)] <= last
        for first, last, lengths in issuers
    )


def _passes_luhn(number: str) -> bool:
    """ISO/IEC 7812-1 annex B."""
    total = 0
    for place, digit in enumerate(reversed(number)):
        value = int(digit) << (place & 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def ibans(text: str) -> Iterator[tuple[int, int]]:
    """International bank account numbers: the country's length, remainder 1 modulo 97."""
    for match in _IBAN.finditer(text):
        start = match.start() - 2
        length = _IBAN_LENGTHS.get(text[start : start + 2].upper())
        end = length and _end_of(text, start, match.end(), length)
        if end and stands_alone(text, start, end) and _passes_mod_97(text[start:end]):
            yield start, end


def _end_of(text: str, start: int, limit: int, length: int) -> int | None:
    """Where `length` characters other than spaces end, counted from `start`; None past `limit`."""
    seen = 0
    for place in range(start, limit):
        seen += text[place] != " "
        if seen == length:
            return place + 1
    return None


def _passes_mod_97(iban: str) -> bool:
    """ISO 7064 MOD 97-10: the first four places moved to the end, letters as 10 to 35."""
    compact = iban.replace(" ", "")
    return int("".join(str(int(c, 36)) for c in compact[4:] + compact[:4])) % 97 == 1
