import gzip
import json
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import Malformed, ReadingConfig, Skipped, plan, read
from jaxtrain.corpus.inputs.json_lines import lines

_COUNT = ReadingConfig(malformed="count")
# Every character that some reader takes for a line break, and none is but "\n".
_BREAKS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_text = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(_BREAKS)))


def _items(path, reading=_COUNT, unit_bytes=None):
    return [item for unit in plan([str(path)], reading, unit_bytes) for item in read(unit, reading)]


def _texts(items):
    return [item.text for item in items if isinstance(item, Document)]


@given(st.lists(st.binary(max_size=12)), st.integers(1, 9), st.integers(0, 12), st.booleans())
def test_lines_are_those_of_a_split_at_newlines_however_blocks_fall(parts, step, limit, ends):
    content = b"\n".join(parts) + (b"\n" if ends else b"")
    blocks = [content[start : start + step] for start in range(0, len(content), step)]
    expected, offset = [], 0
    for line in content.split(b"\n"):
        size = len(line) + (offset + len(line) < len(content))
        if size:
            expected.append((offset, line if len(line) <= limit else None, size))
        offset += size
    assert [tuple(line) for line in lines(blocks, limit)] == expected


@given(st.lists(_text, max_size=8), st.integers(1, 200), st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_ranges_of_a_file_hold_every_document_once_in_order(
    tmp_path_factory, texts, unit_bytes, end
):
    path = tmp_path_factory.mktemp("ranges") / "d.jsonl"
    rows = [json.dumps({"text": text + "."}, ensure_ascii=False) for text in texts]
    path.write_bytes("".join(row + end for row in rows).encode())
    if not texts:
        path.write_bytes(b"")
    items = _items(path, unit_bytes=unit_bytes)
    assert _texts(items) == [text + "." for text in texts]
    assert items == _items(path)
    for item in items:  # the origin leads back to the line
        offset = int(item.metadata["origin"].rpartition(":")[2])
        line = path.read_bytes()[offset:].split(b"\n", 1)[0]
        assert json.loads(line)["text"] == item.text


def test_separators_inside_a_text_split_nothing(tmp_path):
    path = tmp_path / "in.jsonl"
    rows = [{"id": 0, "text": "up\u2028down"}, {"id": 1, "text": "left\u0085right"}, {"text": "x"}]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")
    items = _items(path)
    assert _texts(items) == [row["text"] for row in rows]
    assert [item.id for item in items] == ["0", "1", f"in.jsonl:{path.read_bytes().rindex(b'{')}"]


_FAULTS = {
    "bad JSON": b'{"text": "cut',
    "bad UTF-8": b'{"text": "\xff"}',
    "no text": b'{"txt": "a"}',
    "lone surrogate": b'{"text": "a\\ud800b"}',
    "bad id": b'{"text": "a", "id": 1.5}',
    "too long": b'{"text": "' + b"a" * 300 + b'"}',
}


@pytest.mark.parametrize("reason", _FAULTS)
def test_malformed_line_is_counted_with_its_place_and_passed_by(tmp_path, reason):
    path = tmp_path / "in.jsonl"
    line = _FAULTS[reason]
    path.write_bytes(b'{"text": "first"}\n \n' + line + b'\n{"text": "last"}\n')
    reading = ReadingConfig(malformed="count", max_document_bytes=200)
    first, fault, last = _items(path, reading)
    assert _texts([first, last]) == ["first", "last"]
    assert isinstance(fault, Malformed)
    assert fault[:4] == ("in.jsonl", 20, reason, len(line) + 1)
    assert fault.line == 3
    assert fault.detail


@pytest.mark.parametrize("reason", _FAULTS)
def test_malformed_line_fails_the_run_by_default_naming_file_and_line(tmp_path, reason):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text": "first"}\n\n' + _FAULTS[reason] + b'\n{"text": "last"}\n')
    with pytest.raises(ValueError, match=r"in\.jsonl:3: .*; mend or remove it, .*or set config"):
        _items(path, ReadingConfig(max_document_bytes=200))


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b"1",
        b"{" * 100_000,
        b'{"text": "a", "x": NaN}',
        b'{"text":"a","n":' + b"9" * 9000 + b"}",
    ],
)
def test_json_that_is_no_record_is_malformed(tmp_path, line):
    path = tmp_path / "in.jsonl"
    path.write_bytes(line + b'\n{"text": "last"}\n')
    fault, last = _items(path)
    assert (fault.reason, last.text) == ("bad JSON", "last")


def test_fault_in_a_later_range_is_named_by_its_offset(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text": "first"}\n' * 3 + b"bad\n")
    with pytest.raises(ValueError, match=r"in\.jsonl: not JSON .* at 54; mend"):
        _items(path, ReadingConfig(), unit_bytes=20)


def test_byte_order_mark_and_empty_texts_are_no_faults(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": " "}')
    assert _texts(_items(path)) == ["a"]
    assert _items(path)[1] == Skipped("in.jsonl", 18, "empty text", 13)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_documents_before_a_cut_are_kept_and_the_cut_is_counted(tmp_path, ending):
    rows = [{"text": f"document {number} {number * 7919 % 10007}"} for number in range(20_000)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    packed = gzip.compress(content) if ending == ".gz" else zstandard.compress(content)
    path = tmp_path / f"in.jsonl{ending}"
    path.write_bytes(packed)
    assert _texts(_items(path)) == [row["text"] for row in rows]
    path.write_bytes(packed[: len(packed) * 2 // 3])
    *kept, fault = _items(path)
    assert _texts(kept) == [row["text"] for row in rows[: len(kept)]]
    assert len(kept) > 5_000
    assert (fault.reason, fault.detail) == (
        "damaged file",
        "is cut short: its last part is missing",
    )
    with pytest.raises(ValueError, match="cut short"):
        _items(path, ReadingConfig())


def test_a_line_of_100_megabytes_is_not_held(tmp_path):
    path = tmp_path / "in.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"text": "')
        for _ in range(100):
            file.write(b"a" * 1_000_000)
        file.write(b'"}\n{"text": "last"}\n')
    reading = ReadingConfig(malformed="count", max_document_bytes=10_000_000)
    tracemalloc.start()
    fault, last = _items(path, reading)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (fault.reason, fault.num_bytes, last.text) == ("too long", 100_000_013, "last")
    assert peak < 20_000_000


@pytest.mark.shared
def test_known_cases_of_broken_and_strange_lines_hold(shared_dir):
    cases = shared_dir / "cases/inputs"
    strange = _items(cases / "CLN-13.jsonl", ReadingConfig())
    assert [item.id for item in strange] == ["0", "1", "2"]
    assert (len(strange[0].text), strange[0].text[6]) == (12, "\u2028")
    with pytest.raises(ValueError, match=r"CLN-14\.jsonl:3: not JSON"):
        _items(cases / "CLN-14.jsonl", ReadingConfig())
    broken = _items(cases / "CLN-14.jsonl")
    assert [item.id for item in broken if isinstance(item, Document)] == ["0", "2"]
    assert [(item.reason, item.line) for item in broken if isinstance(item, Malformed)] == [
        ("bad JSON", 3),
        ("no text", 6),
    ]
