"""Rows are those of the file, whatever its format; a malformed one is told from a damaged file."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxtrain.conversations.rows import RowFiles

ROWS = [{"id": 0, "text": "up\u2028down\x85"}, {"id": 1, "messages": [{"role": "user"}]}]


def _table():
    keys = ("id", "text", "messages")
    return pa.Table.from_pylist([{key: row.get(key) for key in keys} for row in ROWS])


def _lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


@pytest.fixture(params=["jsonl", "jsonl.gz", "json", "parquet", "dataset"])
def written(request, tmp_path):
    path = tmp_path / f"chats.{request.param}"
    if request.param == "jsonl":
        path.write_bytes(b"\xef\xbb\xbf" + _lines(ROWS[:1]) + b"\n" + _lines(ROWS[1:]))
    elif request.param == "jsonl.gz":
        path.write_bytes(gzip.compress(_lines(ROWS)))
    elif request.param == "json":
        path.write_text(json.dumps(ROWS))
    elif request.param == "parquet":
        pq.write_table(_table(), path)
    else:
        path = tmp_path / "saved"
        path.mkdir()
        table = _table()
        with pa.ipc.new_stream(path / "data.arrow", table.schema) as stream:
            stream.write_table(table)
        state = {"_data_files": [{"filename": "data.arrow"}], "_indices_data_files": None}
        (path / "state.json").write_text(json.dumps(state))
    return str(path)


def test_rows_are_those_of_the_file(written):
    found = [
        {key: value for key, value in (row.record or {}).items() if value is not None}
        for row in RowFiles([written])
    ]
    assert found == ROWS


def test_a_row_says_where_it_stands(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(_lines(ROWS))
    places = [row.place for row in RowFiles([f"mine={path}"])]
    assert places == ["mine chats.jsonl:0", f"mine chats.jsonl:{len(_lines(ROWS[:1]))}"]


def test_a_malformed_row_is_one_and_the_others_are_read(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(_lines(ROWS[:1]) + b'{"messages": [}\n[1]\n' + _lines(ROWS[1:]))
    rows = list(RowFiles([str(path)]))
    assert [row.record is None for row in rows] == [False, True, True, False]
    assert "not JSON" in rows[1].fault
    assert "must be a JSON object" in rows[2].fault


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, kind):
    path = tmp_path / f"chats.{kind}"
    whole = gzip.compress(_lines(ROWS * 50))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=f"chats.{kind} is damaged"):
        list(RowFiles([str(path)]))


def test_a_broken_array_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "chats.json"
    path.write_text('[{"text": "a"}, {"text"')
    with pytest.raises(ValueError, match=r"chats.json, element 1: .*mend it"):
        list(RowFiles([str(path)]))


def test_files_without_rows_are_refused(tmp_path):
    (tmp_path / "chats.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"chats.txt is text; rows are read from json_"):
        RowFiles([str(tmp_path / "chats.txt")])
