import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus.pii.find import KINDS, PLACEHOLDERS, PersonalData, Span, find, mask

ONE_OF_EACH = {
    "private key": "-----BEGIN PRIVATE KEY-----\nMIIEvQ==\n-----END PRIVATE KEY-----",
    "api key": "AKIA" + "J5K2" * 4,
    "email": "jane.doe+news@mail.example.co.uk",
    "iban": "GB29 NWBK 6016 1331 9268 19",
    "chinese id": "11010519491231002X",
    "bank card": "4111-1111-1111-1111",
    "ip address": "93.184.216.34",
    "phone": "+1 (202) 555-0143",
}
PIECES = st.one_of(
    st.sampled_from([*ONE_OF_EACH.values(), *PLACEHOLDERS.values()]),
    st.sampled_from([*"@.,:/-()+<>= \n１v", "::", "电话：", "tel: ", "key=", "0013", "2024-01-15"]),
    st.text("0123456789", max_size=20),
    st.text("0123456789abcdefABCDEF:.@-+ ()", max_size=12),
    st.text(max_size=4),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


def test_kinds_are_those_that_have_an_example_here():
    assert list(ONE_OF_EACH) == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_each_kind_is_found_where_it_stands(kind):
    value = ONE_OF_EACH[kind]
    for before, after in (
        ("", ""),
        ("是 ", "。"),
        ("to ", ", and"),
        ("(", ")"),
        ("\U0001f600\n", "\n"),
    ):
        text = before + value + after
        assert find(text) == [Span(len(before), len(before) + len(value), kind)]
        assert mask(text, find(text)) == before + PLACEHOLDERS[kind] + after


def test_kinds_not_asked_for_stay():
    text = " ".join(ONE_OF_EACH.values())
    for kind in KINDS:
        assert [span.kind for span in PersonalData((kind,)).find(text)] == [kind]


def test_overlap_goes_to_the_kind_of_higher_priority():
    text = "-----BEGIN PRIVATE KEY-----\njane@example.org\n-----END PRIVATE KEY-----"
    assert find(text) == [Span(0, len(text), "private key")]


@settings(max_examples=300)
@given(TEXTS)
def test_spans_are_in_order_apart_and_nothing_is_left_when_masked(text):
    spans = find(text)
    edges = [0, *(edge for span in spans for edge in (span.start, span.end)), len(text)]
    assert edges == sorted(edges)
    assert all(span.start < span.end and span.kind in KINDS for span in spans)
    masked = mask(text, spans)
    assert find(masked) == []
    for before, after in zip(edges[0::2], edges[1::2], strict=True):  # what is between spans
        kept = text[before:after]
        assert masked.startswith(kept)
        masked = masked[len(kept) :]
        if after < len(text) or masked:
            placeholder = PLACEHOLDERS[next(s.kind for s in spans if s.start == after)]
            assert masked.startswith(placeholder)
            masked = masked[len(placeholder) :]


@given(st.text())
def test_any_text_is_searched_without_an_error(text):
    assert mask(text, find(text)).count("<") >= text.count("<")


def test_what_a_mask_lays_bare_is_found_too():
    text = "jane@example.org4111111111111111"  # a card that touches a word until that is masked
    masked = mask(text, find(text))
    assert find(masked) == []


LABELS = {
    "CREDIT_CARD": "bank card",
    "EMAIL_ADDRESS": "email",
    "IBAN_CODE": "iban",
    "IP_ADDRESS": "ip address",
    "PHONE_NUMBER": "phone",
}
# The labelled phone numbers are made up: many are assigned nowhere, most are of regions that are
# not asked for. Of the cards 8 of 9 that are missed lie outside the range of their issuer.
LEAST_RECALL = {"email": 1.0, "iban": 1.0, "ip address": 1.0, "bank card": 0.93, "phone": 0.65}


@pytest.mark.shared
def test_labelled_spans_are_found_and_hardly_anything_else(shared_dir):
    path = shared_dir / "data" / "pii" / "presidio-synth_dataset_v2.json.gz"
    labelled = dict.fromkeys(LEAST_RECALL, 0)
    found = dict.fromkeys(KINDS, 0)
    right = dict.fromkeys(KINDS, 0)
    for row in json.loads(gzip.decompress(path.read_bytes())):
        truth = [
            (span["start_position"], span["end_position"], LABELS[span["entity_type"]])
            for span in row["spans"]
            if span["entity_type"] in LABELS
        ]
        for _, _, kind in truth:
            labelled[kind] += 1
        for start, end, kind in find(row["full_text"]):
            found[kind] += 1
            right[kind] += any(
                start < last and first < end and kind == named for first, last, named in truth
            )
    for kind, least in LEAST_RECALL.items():
        assert right[kind] >= 0.99 * found[kind]
        assert right[kind] >= least * labelled[kind]
    assert found["api key"] == found["private key"] == found["chinese id"] == 0


@pytest.mark.shared
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (0, "logged 2024-01-15 12 times"),
        (1, "octets 999.10.1.1 are not valid"),
        (2, "server at <IP_ADDRESS> answered"),
        (3, "build 10.15.7 and pi 3.14159265358979"),
        (4, "call <PHONE> now"),
    ],
)
def test_dates_versions_and_decimals_are_no_personal_data(shared_dir, row, expected):
    """Case CLN-11."""
    lines = (shared_dir / "cases" / "inputs" / "CLN-11.jsonl").read_text().split("\n")
    text = json.loads(lines[row])["text"]
    assert mask(text, find(text)) == expected


@pytest.mark.shared
@pytest.mark.parametrize("name", ["eval/gsm8k-train.jsonl.gz", "math-en/stacks-categories.tex.gz"])
def test_arithmetic_and_mathematics_hold_no_personal_data(shared_dir, name):
    assert find(gzip.decompress((shared_dir / "data" / name).read_bytes()).decode()) == []
