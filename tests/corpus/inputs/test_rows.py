import pyarrow as pa

from jaxtrain.corpus.inputs.reading import Part, ReadingConfig
from jaxtrain.corpus.inputs.rows import documents, rows_at_once

_PART = Part("/x/a.arrow", "a.arrow", "dataset", 0, None, "a")


def test_rows_are_numbered_from_the_first_row_of_the_batch():
    batch = pa.record_batch({"text": [f"{number}" for number in range(600)]})
    found = list(documents(batch, 1000, _PART, ReadingConfig()))
    assert [d.text for d in found] == [f"{number}" for number in range(600)]
    assert [d.id for d in found] == [f"a.arrow:{1000 + number}" for number in range(600)]


def test_row_of_a_corpus_with_broken_metadata_is_malformed():
    names = ("id", "text", "source", "origin", "metadata")
    batch = pa.record_batch({name: ["{x", "y"][:1] for name in names})
    [fault] = documents(batch, 0, _PART, ReadingConfig())
    assert (fault.reason, fault.offset) == ("bad JSON", 0)


def test_few_long_rows_and_many_short_ones_are_held_at_a_time():
    assert rows_at_once(10, 10 * 5_000_000) == 1
    assert rows_at_once(1000, 1000 * 50_000) == 160
    assert rows_at_once(10**6, 10**6) == 1024
    assert rows_at_once(0, 0) == 1
