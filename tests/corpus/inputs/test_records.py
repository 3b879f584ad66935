import datetime
import decimal

import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs.reading import Fault, Part, ReadingConfig, Skipped
from jaxtrain.corpus.inputs.records import plain, refuse_surrogates, to_document

_PART = Part("/x/a.jsonl", "a.jsonl", "json_lines", 0, None, "x")


def _document(record, part=_PART, **options):
    return to_document(record, part, 7, 20, ReadingConfig(**options))


def test_record_becomes_a_document_that_leads_back_to_its_place():
    assert _document({"id": 3, "text": "t", "source": "web", "url": "u"}) == Document(
        "3", "t", "web", {"url": "u", "origin": "a.jsonl:7"}
    )


def test_missing_id_is_the_place_and_missing_source_that_of_the_input():
    assert _document({"text": "t", "id": None})[:3] == ("a.jsonl:7", "t", "x")


def test_fields_of_other_names_are_read_and_what_has_our_names_is_kept_under_another():
    record = {"body": "t", "uid": "u1", "site": "s1", "id": 5, "text": 0, "origin": "o"}
    document = _document(record, text_field="body", id_field="uid", source_field="site")
    assert document == Document(
        "u1",
        "t",
        "s1",
        {"input_id": 5, "input_text": 0, "input_origin": "o", "origin": "a.jsonl:7"},
    )


def test_name_that_the_user_gave_goes_before_that_of_the_record():
    part = _PART._replace(source="mine", is_named=True)
    document = _document({"text": "t", "source": "theirs"}, part)
    assert isinstance(document, Document)
    assert (document.source, document.metadata["input_source"]) == ("mine", "theirs")


@pytest.mark.parametrize("text", ["", " \n\u3000"])
def test_empty_text_is_skipped_and_no_fault(text):
    assert _document({"text": text}) == Skipped("a.jsonl", 7, "empty text", 20)


@pytest.mark.parametrize(
    ("record", "options", "reason", "message"),
    [
        ({"txt": "a"}, {}, "no text", r"has no `text` among its keys \['txt'\]"),
        ({"text": None}, {}, "no text", r"`text` is None, but must be a string"),
        ({"text": ["a" * 100]}, {}, "no text", r"`text` is \['a+…, but must"),
        ({"text": "a", "id": 1.5}, {}, "bad id", r"`id` is 1\.5, but must be a string"),
        ({"text": "a", "id": True}, {}, "bad id", r"`id` is True, but"),
        ({"text": "a", "id": ""}, {}, "bad id", r"`id` is '', but"),
        ({"text": "a", "source": []}, {}, "bad source", r"`source` is \[\], but"),
        ({"text": "a"}, {"id_field": "uid"}, "missing field", r"has no `uid`"),
        ({"text": "a"}, {"source_field": "site"}, "missing field", r"has no `site`"),
        ({"text": "a", "b": 1}, {"fields": ("b", "url")}, "missing field", r"has no `url`"),
    ],
)
def test_fault_says_what_is_wrong_with_a_record(record, options, reason, message):
    with pytest.raises(Fault, match=message) as caught:
        _document(record, **options)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "record", [{"text": "a\ud800"}, {"meta": {"k": ["\udfff"]}}, {"\ud800": 1}]
)
def test_half_a_surrogate_pair_anywhere_is_a_fault(record):
    with pytest.raises(Fault, match=r"lone surrogate U\+D"):
        refuse_surrogates(record)
    refuse_surrogates({"text": "\U0001f600", "meta": {"k": "\ue000"}})


def test_values_of_tables_become_json_values():
    date = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    value = {"d": date, "n": decimal.Decimal("1.50"), "b": b"\xc3\xa9", "l": (1, None)}
    assert plain(value) == {
        "d": "2024-05-01T12:00:00+00:00",
        "n": "1.50",
        "b": "é",
        "l": [1, None],
    }
    with pytest.raises(Fault, match="no UTF-8 at 0"):
        plain(b"\xff")
