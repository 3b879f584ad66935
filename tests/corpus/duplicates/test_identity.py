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


def test_equal_texts_differ_in_the_last_column_alone():
    keys = order_keys([_document(identity="a"), _document(identity="b"), _document(source="t")])
    assert (keys[:, :3] == keys[0, :3]).all()
    assert len(set(keys[:, 3].tolist())) == 3


def test_order_of_metadata_is_no_difference():
    keys = order_keys([_document(x=1, y=2), _document(y=2, x=1)])
    assert keys[0].tolist() == keys[1].tolist()


def test_no_documents_have_no_order():
    assert order_keys([]).shape == (0, 4)
