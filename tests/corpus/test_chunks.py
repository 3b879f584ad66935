import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from jaxtrain.corpus import chunks
from jaxtrain.corpus.chunks import merge_chunks, read_chunk, write_chunk
from jaxtrain.corpus.documents import Document

FIELDS = {"language": str, "score": float, "words": int, "clean": bool}
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
_text = st.text(st.characters(exclude_categories=["Cs"]))
_documents = st.lists(
    st.builds(
        lambda identity, text, source, known, rest: Document(
            identity, text, source, rest | dict(zip(FIELDS, known, strict=True)) | {"origin": text}
        ),
        *(_text, _text, _text),
        st.tuples(
            st.none() | _text,
            st.none() | st.floats(allow_nan=False),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.booleans(),
        ),
        st.dictionaries(_text.filter(lambda key: key not in (*chunks.RESERVED, *FIELDS)), _json),
    ),
    max_size=6,
)


@given(_documents)
def test_documents_come_back_as_they_were(tmp_path_factory, documents):
    path = tmp_path_factory.mktemp("chunk") / "a.parquet"
    write_chunk(path, documents, FIELDS)
    back = list(read_chunk(path))
    assert back == documents
    for name, kind in FIELDS.items():
        assert {type(d.metadata[name]) for d in back} <= {kind, type(None)}


def _documents_of(num, text="some text"):
    return [
        Document(str(i), f"{i} {text}", "s", {"origin": f"f:{i}", "b": 1, "a": [2]})
        for i in range(num)
    ]


def test_same_documents_give_the_same_bytes_whatever_the_order_of_their_keys(tmp_path):
    turned = [
        d._replace(metadata=dict(reversed(list(d.metadata.items())))) for d in _documents_of(9)
    ]
    write_chunk(tmp_path / "one", _documents_of(9), {})
    write_chunk(tmp_path / "two", turned, {})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_columns_are_the_standard_ones_and_the_fields_in_their_types(tmp_path):
    write_chunk(tmp_path / "a", [], FIELDS)
    schema = pq.read_schema(tmp_path / "a")
    assert {name: str(schema.field(name).type) for name in schema.names} == {
        **dict.fromkeys(("id", "text", "source", "origin"), "string"),
        **{"language": "string", "score": "double", "words": "int64", "clean": "bool"},
        "metadata": "string",
    }


def test_merged_chunks_hold_all_in_order_in_row_groups_of_their_own_size(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "_ROW_GROUP_BYTES", 100)
    documents = _documents_of(30)
    paths = [tmp_path / str(i) for i in range(15)]
    for i, path in enumerate(paths):
        write_chunk(path, documents[2 * i : 2 * i + 2], {"b": int})
    monkeypatch.setattr(chunks, "_ROW_GROUP_BYTES", 10_000)
    merge_chunks(paths, tmp_path / "all")
    assert list(read_chunk(tmp_path / "all")) == documents
    assert pq.read_metadata(tmp_path / "all").num_row_groups == 1
    write_chunk(tmp_path / "at once", documents, {"b": int})
    assert (tmp_path / "all").read_bytes() == (tmp_path / "at once").read_bytes()


def test_reader_holds_one_row_group_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "_ROW_GROUP_BYTES", 100)
    write_chunk(tmp_path / "a", _documents_of(40), {})
    assert pq.read_metadata(tmp_path / "a").num_row_groups >= 4
    assert [d.id for d in read_chunk(tmp_path / "a")] == [str(i) for i in range(40)]


def test_file_of_another_kind_is_refused_with_its_path(tmp_path):
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet is no file of a corpus: .* column text"):
        list(read_chunk(tmp_path / "a.parquet"))


def test_text_that_is_no_unicode_leaves_no_file(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_chunk(tmp_path / "a", [Document("1", "\ud800", "s", {})], {})
    assert list(tmp_path.iterdir()) == []
