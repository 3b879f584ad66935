import pytest

from jaxtrain.corpus.inputs.reading import Part, ReadingConfig, Unit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_field": ""}, r"^text_field is empty; name"),
        ({"max_malformed_frac": 1.5}, r"^max_malformed_frac=1\.5 is a share, from 0 to 1"),
        ({"max_document_bytes": 0}, r"^max_document_bytes=0 must be at least 1"),
        ({"fields": ("url", "origin")}, r"^fields holds \['origin'\], which every document has"),
    ],
)
def test_config_that_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ReadingConfig(**options)


def test_share_of_malformed_records_stops_a_run_at_its_end_or_after_a_thousand_records():
    reading = ReadingConfig(max_malformed_frac=0.1)
    reading.check_malformed(5, 10)  # too few to tell
    reading.check_malformed(1, 10, done=True)
    reading.check_malformed(100, 1000)
    with pytest.raises(ValueError, match=r"2 of 10 records are malformed, more than .*frac=0\.1"):
        reading.check_malformed(2, 10, done=True)
    with pytest.raises(ValueError, match=r"101 of 1,000 records are malformed"):
        reading.check_malformed(101, 1000)


def test_unit_is_named_by_its_first_and_last_file():
    first, last = (Part(f"/x/{name}", name, "text", 0, None, "x") for name in "ab")
    assert Unit((first,), 1).name == "a"
    assert Unit((first, last), 2).name == "a … b"
