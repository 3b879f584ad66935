import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import Malformed, ReadingConfig, plan, read
from jaxtrain.corpus.inputs.parquet import ranges

_COUNT = ReadingConfig(malformed="count")


def _items(path, reading=_COUNT, unit_bytes=None):
    return [item for unit in plan([str(path)], reading, unit_bytes) for item in read(unit, reading)]


def test_rows_are_documents_with_their_columns_and_row_numbers(tmp_path):
    day = datetime.date(2024, 5, 1)
    table = pa.table({"id": [7, None], "text": ["a", "b"], "day": [day, None], "n": [[1], []]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert _items(tmp_path / "x.parquet") == [
        Document("7", "a", "x", {"day": "2024-05-01", "n": [1], "origin": "x.parquet:0"}),
        Document("x.parquet:1", "b", "x", {"day": None, "n": [], "origin": "x.parquet:1"}),
    ]


def test_ranges_hold_every_row_once_with_the_same_origin(tmp_path):
    table = pa.table({"text": [f"text {number} " * 50 for number in range(100)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=7, use_dictionary=False)
    whole = _items(tmp_path / "x.parquet")
    assert [item.metadata["origin"] for item in whole] == [f"x.parquet:{n}" for n in range(100)]
    assert len(ranges(str(tmp_path / "x.parquet"), 10_000)) > 3
    assert _items(tmp_path / "x.parquet", unit_bytes=10_000) == whole


def test_bad_utf8_and_missing_text_are_counted_by_row(tmp_path):
    raw = pa.array([b"good", b"\xff\xfe", None, b"more"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
    pq.write_table(pa.table({"text": text}), tmp_path / "x.parquet")
    good, bad, missing, more = _items(tmp_path / "x.parquet")
    assert (good.text, more.text) == ("good", "more")
    assert (bad.reason, bad.offset) == ("bad UTF-8", 1)
    assert (missing.reason, missing.offset) == ("no text", 2)


def test_binary_text_column_is_read_as_utf8(tmp_path):
    pq.write_table(
        pa.table({"text": pa.array(["é".encode()], pa.binary())}), tmp_path / "x.parquet"
    )
    assert _items(tmp_path / "x.parquet")[0].text == "é"


def test_too_long_text_is_malformed(tmp_path):
    pq.write_table(pa.table({"text": ["a" * 100, "b"]}), tmp_path / "x.parquet")
    fault, kept = _items(
        tmp_path / "x.parquet", ReadingConfig(malformed="count", max_document_bytes=50)
    )
    assert (fault.reason, fault.num_bytes, kept.text) == ("too long", 100, "b")


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_truncated_file_is_damaged_and_no_crash(tmp_path, share):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a"] * 100}), path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    [fault] = _items(path)
    assert isinstance(fault, Malformed)
    assert fault.reason == "damaged file"
    with pytest.raises(ValueError, match=r"x\.parquet: .* mend or remove it"):
        _items(path, ReadingConfig())


def test_a_corpus_that_prepare_wrote_reads_as_it_was(tmp_path):
    columns = {
        "id": ["d1", "d2"],
        "text": ["a", "b"],
        "source": ["web", "web"],
        "origin": ["raw.jsonl:0", "raw.jsonl:90"],
        "language": ["en", None],
        "metadata": [json.dumps({"url": "u", "n": [1]}), "{}"],
    }
    pq.write_table(pa.table(columns), tmp_path / "00000.parquet")
    assert _items(tmp_path / "00000.parquet") == [
        Document(
            "d1", "a", "web", {"language": "en", "url": "u", "n": [1], "origin": "raw.jsonl:0"}
        ),
        Document("d2", "b", "web", {"language": None, "origin": "raw.jsonl:90"}),
    ]
