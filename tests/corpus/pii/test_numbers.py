import datetime

import numpy as np
import pytest

from jaxtrain.corpus.pii.digits import digit_runs
from jaxtrain.corpus.pii.numbers import bank_cards, chinese_ids, ibans


def _found(finder, text):
    return [text[start:end] for start, end in finder(text, digit_runs(text))]


def _chinese_id(first_17):
    """The check character by the standard's own table of weights."""
    weights = [7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2]
    total = sum(int(digit) * weight for digit, weight in zip(first_17, weights, strict=True))
    return first_17 + "10X98765432"[total % 11]


def test_chinese_ids_are_found_by_region_date_and_check_character():
    rng = np.random.default_rng(0)
    for _ in range(200):
        born = datetime.date(1950, 1, 1) + datetime.timedelta(int(rng.integers(25_000)))
        number = _chinese_id(f"310101{born:%Y%m%d}{rng.integers(1000):03}")
        assert _found(chinese_ids, f"身份证号{number}，") == [number]
        wrong = number[:16] + str((int(number[16]) + 1) % 10) + number[17]
        assert _found(chinese_ids, wrong) == []


def test_chinese_id_of_the_standard_is_found_in_either_case():
    assert _found(chinese_ids, "11010519491231002X 11010519491231002x") == [
        "11010519491231002X",
        "11010519491231002x",
    ]


@pytest.mark.parametrize(
    "first_17",
    ["99010519491231002", "11010519490231002", "11010519491331002", "11010518491231002"],
)
def test_chinese_ids_of_no_region_or_no_date_are_none(first_17):
    assert _found(chinese_ids, _chinese_id(first_17)) == []


# The numbers that payment services publish for tests.
CARDS = [
    "4111111111111111",
    "4012-8888-8888-1881",
    "5555 5555 5555 4444",
    "2223003122003222",
    "378282246310005",
    "3714 496353 98431",
    "6011111111111117",
    "30569309025904",
    "3056 930902 5904",
    "3530111333300000",
    "6200000000000005",
]


@pytest.mark.parametrize("number", CARDS)
def test_cards_are_found_unbroken_and_in_groups(number):
    assert _found(bank_cards, f"my card {number}, thanks") == [number]
    last = str((int(number[-1]) + 1) % 10)
    assert _found(bank_cards, f"my card {number[:-1]}{last}, thanks") == []


def test_luhn_numbers_outside_issuer_ranges_are_no_cards():
    def with_check(digits):
        double = [int(d) * (2 - place % 2) for place, d in enumerate(reversed(digits))]
        return digits + str(-sum(d // 10 + d % 10 for d in double) % 10)

    assert with_check("411111111111111") == "4111111111111111"
    for digits in ("978316148410000", "170000000000000", "060426070011100", "351011133330000"):
        assert _found(bank_cards, with_check(digits)) == []


def test_numbers_that_may_be_articles_need_a_word_for_a_card():
    assert _found(bank_cards, "article 4222222222222 in stock") == []
    assert _found(bank_cards, "credit card 4222222222222") == ["4222222222222"]


@pytest.mark.parametrize(
    "text",
    [
        "0.4111111111111111",
        "a4111111111111111",
        "41111111111111112222",
        "4111 1111 1111 1111 1111 4",
    ],
)
def test_parts_of_longer_tokens_are_no_cards(text):
    assert _found(bank_cards, f"card {text} ") == []


# Examples of the ISO 13616 registry.
IBANS = [
    "GB29NWBK60161331926819",
    "DE89370400440532013000",
    "FR1420041010050500013M02606",
    "NO9386011117947",
    "MT84MALT011000012345MTLCAST001S",
    "CH93 0076 2011 6238 5295 7",
    "SA03 8000 0000 6080 1016 7519",
    "BR18 0036 0305 0000 1000 9795 493C 1",
]


@pytest.mark.parametrize("iban", IBANS)
def test_ibans_of_the_registry_are_found_and_altered_ones_are_not(iban):
    def found(text):
        return [text[start:end] for start, end in ibans(text)]

    assert found(f"IBAN {iban} to pay") == [iban]
    assert found(f"账号{iban}。") == [iban]
    place = len(iban) - 2
    altered = iban[:place] + str((int(iban[place]) + 1) % 10) if iban[place].isdigit() else "GB00"
    assert found(altered + iban[place + 1 :]) == []
    assert found(iban[:-1]) == []
    assert found("X" + iban) == []
