import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.documents import PART_OF, Document, fingerprint, write_documents
from jaxtrain.corpus.inputs import read_documents

# Every character that some reader takes for a line break, and none is but "\n" between documents.
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_text = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(_BREAKS)))


_name = _text.filter(bool)


@given(st.lists(st.tuples(_name, _text, _name, st.dictionaries(_text, _text))))
def test_documents_round_trip_whatever_their_characters(tmp_path_factory, fields):
    reserved = {"id", "text", "source", "origin"}
    documents = [
        Document(i, t + ".", s, {k: v for k, v in m.items() if k not in reserved})
        for i, t, s, m in fields
    ]
    path = tmp_path_factory.mktemp("documents") / "d.jsonl"
    write_documents(path, documents)
    places = [each.metadata["origin"] for each in read_documents([str(path)])]
    assert list(read_documents([str(path)])) == [
        each._replace(metadata={**each.metadata, "origin": place})
        for each, place in zip(documents, places, strict=True)
    ]
    lines = path.read_bytes()
    for each, place in zip(documents, places, strict=True):
        name, _, start = place.rpartition(":")
        assert name == "d.jsonl"
        assert json.loads(lines[int(start) :].partition(b"\n")[0])["text"] == each.text


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
    part = Document("json/decoder.py#L1:module", "", "s", {PART_OF: "json/decoder.py"})
    assert part.whole_id == "json/decoder.py"
    assert Document("https://a/b#c", "", "s", {}).whole_id == "https://a/b#c"
    assert Document("json/decoder.py", "", "s", {}).whole_id == "json/decoder.py"
