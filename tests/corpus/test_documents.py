import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document, fingerprint, read_documents, write_documents

# Every character that some reader takes for a line break, and none is but "\n" between documents.
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_text = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(_BREAKS)))


def _read(tmp_path, content: bytes):
    (tmp_path / "in.jsonl").write_bytes(content)
    return list(read_documents(tmp_path / "in.jsonl"))


@given(st.lists(st.tuples(_text, _text, _text, st.dictionaries(_text, _text))))
def test_documents_round_trip_whatever_their_characters(tmp_path_factory, fields):
    reserved = {"id", "text", "source"}
    documents = [
        Document(i, t, s, {k: v for k, v in m.items() if k not in reserved})
        for i, t, s, m in fields
    ]
    path = tmp_path_factory.mktemp("documents") / "d.jsonl"
    write_documents(path, documents)
    assert list(read_documents(path)) == documents


def test_unescaped_line_separators_inside_a_text_split_nothing(tmp_path):
    rows = [{"id": 0, "text": "up\u2028down"}, {"id": 1, "text": "left\u0085right"}, {"text": "x"}]
    content = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
    documents = _read(tmp_path, content)
    assert [document.text for document in documents] == [row["text"] for row in rows]
    assert [document.id for document in documents] == ["0", "1", "in.jsonl:3"]


def test_blank_lines_and_a_missing_last_line_break_are_no_errors(tmp_path):
    assert [d.text for d in _read(tmp_path, b'\n{"text": "a"}\n  \r\n{"text": "b"}')] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut', r"in\.jsonl:3: not JSON"),
        (b'{"text": "\xff"}', r"in\.jsonl:3: not UTF-8 at byte 10"),
        (b'{"txt": "a"}', r"in\.jsonl:3: has no `text` among its keys \['txt'\]"),
        (b'{"text": null}', r"in\.jsonl:3: `text` is None, but must be a string"),
        (b'{"text": "a", "id": 1.5}', r"in\.jsonl:3: `id` is 1\.5, but must be a string"),
        (b'["a"]', r"in\.jsonl:3: a list, but must be a JSON object"),
        (
            b'{"text": "a\\ud800b"}',
            r"in\.jsonl:3: `text` has the lone surrogate U\+D800 at char.* 1",
        ),
    ],
)
def test_malformed_line_is_an_error_naming_file_and_line(tmp_path, line, message):
    with pytest.raises(ValueError, match=message):
        _read(tmp_path, b'{"text": "first"}\n\n' + line + b'\n{"text": "last"}\n')


def test_written_counts_are_of_the_texts_in_utf8(tmp_path):
    documents = [Document("a", "naïve", "s", {}), Document("b", "日本", "s", {})]
    written = write_documents(tmp_path / "d.jsonl", documents)
    assert (written.documents, written.bytes) == (2, 6 + 6)


def test_no_file_appears_when_the_source_of_documents_fails(tmp_path):
    def failing():
        yield Document("a", "text", "s", {})
        raise OSError("source is gone")

    with pytest.raises(OSError, match="source is gone"):
        write_documents(tmp_path / "d.jsonl", failing())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["id", "text", "source"])
def test_fingerprint_changes_with_every_field_and_the_order(field):
    one, two = Document("a", "text", "s", {}), Document("b", "more", "s", {})
    base = fingerprint([one, two])
    assert fingerprint([one, two]) == base
    assert fingerprint([two, one]) != base
    assert fingerprint([one._replace(**{field: "other"}), two]) != base
    assert fingerprint([one._replace(metadata={"licence": "PSF"}), two]) != base


def test_whole_id_of_a_part_is_the_id_of_its_whole():
    assert Document("json/decoder.py#L1:module", "", "s", {}).whole_id == "json/decoder.py"
    assert Document("json/decoder.py", "", "s", {}).whole_id == "json/decoder.py"
