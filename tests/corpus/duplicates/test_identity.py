import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates.identity import (
    chunk_of,
    order_keys,
    pack,
    places,
    row_of,
    unpack,
)


def _document(text="text", identity="a", source="s", **metadata):
    return Document(identity, text, source, metadata)


def _sorted(*documents):
    keys = order_keys(documents)
    return [documents[i] for i in np.lexsort(keys.T[::-1])]


@given(st.integers(0, 2**30), st.lists(st.integers(0, 2**32 - 1)))
def test_places_hold_chunk_and_row(chunk, rows):
    where = places(chunk, np.array(rows, np.int64))
    assert row_of(where).tolist() == rows
    assert set(chunk_of(where).tolist()) <= {chunk}


@given(st.lists(st.text()), st.data())
def test_packed_strings_come_back(strings, data):
    rows = data.draw(st.lists(st.integers(0, len(strings) - 1))) if strings else []
    assert unpack(*pack(strings), rows) == [strings[row] for row in rows]


def test_longer_texts_come_first_counted_in_bytes():
    short, long, chinese = _document("aaa"), _document("aaaa"), _document("人人")
    assert _sorted(short, chinese, long) == [chinese, long, short]


@given(st.permutations([_document(t, i, n=n) for t in "ab" for i in "cd" for n in (1, 2)]))
def test_order_is_one_of_content(documents):
    assert _sorted(*documents) == _sorted(*sorted(documents, key=repr))


def test_equal_texts_are_told_apart_by_id_and_source():
    keys = order_keys([_document(identity="a"), _document(identity="b"), _document(source="t")])
    assert (keys[:, [0, 1, 2, 4]] == keys[0, [0, 1, 2, 4]]).all()
    assert len(set(keys[:, 3].tolist())) == 3


def test_metadata_such_as_the_origin_counts_only_where_all_else_is_equal():
    keys = order_keys([_document(), _document(origin="a:0"), _document(origin="b:7")])
    assert (keys[:, :4] == keys[0, :4]).all()
    assert len(set(keys[:, 4].tolist())) == 3


def test_order_of_metadata_is_no_difference():
    keys = order_keys([_document(x=1, y=2), _document(y=2, x=1)])
    assert keys[0].tolist() == keys[1].tolist()


def test_no_documents_have_no_order():
    assert order_keys([]).shape == (0, 5)
