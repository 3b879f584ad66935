import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus.inputs import ReadingConfig, json_array
from jaxtrain.corpus.inputs.json_array import elements
from jaxtrain.corpus.inputs.reading import Fault, Malformed, Part, Skipped

_json = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=4,
)


def _read(tmp_path, content, **options):
    (tmp_path / "x.json").write_bytes(content)
    part = Part(str(tmp_path / "x.json"), "x.json", "json_array", 0, None, "x")
    return list(json_array.read(part, ReadingConfig(malformed="count", **options)))


@settings(max_examples=50)
@given(
    st.lists(st.dictionaries(st.text(), _json), max_size=5),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.integers(1, 30),
)
def test_elements_are_those_of_the_whole_file_however_blocks_fall(rows, indent, is_ascii, step):
    content = json.dumps(rows, indent=indent, ensure_ascii=is_ascii).encode(errors="replace")
    blocks = [content[start : start + step] for start in range(0, len(content), step)]
    assert [element for element, _ in elements(blocks, 10**6)] == json.loads(content)


def test_records_are_documents_whose_origin_is_their_number(tmp_path):
    first, second, empty = _read(
        tmp_path, ' [{"text": "a"},\n{"text": "é"}, {"text": ""}]\n'.encode()
    )
    assert (first.text, first.id, first.metadata) == ("a", "x.json:0", {"origin": "x.json:0"})
    assert second.id == "x.json:1"
    assert empty == Skipped("x.json", 2, "empty text", 12)


@pytest.mark.parametrize(
    ("content", "reason", "offset", "num_documents"),
    [
        (b'[{"text": "a"}, {"text": "b"', "bad JSON", 1, 1),
        (b'[{"text": "a"}; {"text": "b"}]', "bad JSON", 1, 1),
        (b'[{"text": "a"}] x', "bad JSON", 1, 1),
        (b'{"data": [{"text": "a"}]}', "bad JSON", 0, 0),
        (b"", "bad JSON", 0, 0),
        (b'[{"text": "\xff"}]', "bad UTF-8", 0, 0),
        (b'[{"text": "a"}, {"text": "\\ud800"}, {"text": "b"}]', "lone surrogate", 1, 2),
        (b'[{"text": "a"}, 5, {"text": "b"}]', "bad JSON", 1, 2),
        (b'[{"text": "a"}, {"text": NaN}]', "bad JSON", 1, 1),
        (b"[" * 100_000, "bad JSON", 0, 0),
    ],
)
def test_what_is_malformed_is_counted_and_what_can_be_read_is_kept(
    tmp_path, content, reason, offset, num_documents
):
    items = _read(tmp_path, content)
    [fault] = [item for item in items if isinstance(item, Malformed)]
    assert (fault.reason, fault.offset) == (reason, offset)
    assert len(items) == num_documents + 1


def test_a_record_that_is_too_long_is_not_held():
    def blocks():
        yield b'[{"text": "'
        for _ in range(50):
            yield b"a" * 1_000_000
        yield b'"}]'

    tracemalloc.start()
    with pytest.raises(Fault, match="longer than max_document_bytes=1,000,000"):
        list(elements(blocks(), 1_000_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 15_000_000


@pytest.mark.shared
def test_a_real_file_is_one_array(shared_dir):
    file = str(shared_dir / "data/poetry-zh/ci.song.0.json.gz")
    part = Part(file, "ci", "json_array", 0, None, "ci")
    items = list(json_array.read(part, ReadingConfig(text_field="rhythmic", malformed="count")))
    assert len(items) == 1000
    assert not any(isinstance(item, Malformed) for item in items)
