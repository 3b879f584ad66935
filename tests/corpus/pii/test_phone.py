import pytest

from jaxtrain.corpus.pii.digits import digit_runs
from jaxtrain.corpus.pii.find import REGIONS
from jaxtrain.corpus.pii.phone import PhoneNumbers


def _found(text, regions=REGIONS):
    return [text[start:end] for start, end in PhoneNumbers(regions)(text, digit_runs(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("call +1 (202) 555-0143 now", ["+1 (202) 555-0143"]),
        ("(202) 555-0143 or 202.555.0144.", ["(202) 555-0143", "202.555.0144"]),
        ("202-555-0143 202-555-0144", ["202-555-0143", "202-555-0144"]),
        ("202-555-0143 / 202-555-0144", ["202-555-0143", "202-555-0144"]),
        ("(see 202-555-0143)", ["202-555-0143"]),
        ("toll-free 1-800-343-3548", ["1-800-343-3548"]),
        ("202-555-0143 ext. 12, 202-555-0143x9", ["202-555-0143 ext. 12", "202-555-0143x9"]),
        ("+49 30 901820 and +442079460958", ["+49 30 901820", "+442079460958"]),
        ("020 7946 0958", ["020 7946 0958"]),
        ("0044 20 7946 0958", ["0044 20 7946 0958"]),
        ("手机13800138000，", ["13800138000"]),
        ("138-0013-8000 138 0013 8000", ["138-0013-8000", "138 0013 8000"]),
        ("010-82866688", ["010-82866688"]),
        ("call 2025550143", ["2025550143"]),
        ("Phone: 467 3395\nFax:\n(99) 645-791", ["467 3395", "(99) 645-791"]),
    ],
)
def test_numbers_are_found_whole(text, expected):
    assert _found(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "logged 2024-01-15 12 times",
        "2024-01-15 10:20, 15/01/2024, 20240115, 2024.01.15 120",
        "from 1997-2005 and 2007 - 2016",
        "pi is 3.14159265358979 and e 2.718281828",
        "1700000000 s, 1700000000000 ms",
        "cost $202-555-0143, 12,345,678,901, 202-555-0143%",
        "id 2025550143 of /item/202-555-0143 and ?p=202-555-0143",
        "A-202-555-0143 and x202-555-0143 and 202-555-0143y",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
        "10.1111/1365-2664.12646 ISBN 978-3-16-148410-0",
        "build 10.15.7.1234 of 2024",
        "202-555-01430 and 102-555-0143",
        "+1 234 and +99999999999",
        "+35236450.6 +3.140000 400.8000000 0.0430180 00.0577000 522.4000000",
        "1600 - 1500, 1600-1360=240, 10600 - 11500, 202-555-0143=1",
    ],
)
def test_dates_decimals_and_serial_numbers_are_no_numbers(text):
    assert _found(text) == []


def test_national_forms_are_those_of_the_regions():
    assert _found("01 84 17 61 18") == []
    assert _found("01 84 17 61 18", ("FR",)) == ["01 84 17 61 18"]


def test_region_without_telephones_is_refused():
    with pytest.raises(ValueError, match=r"regions: 'XX' is no region .* US or CN"):
        PhoneNumbers(("US", "XX"))
