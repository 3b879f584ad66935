import hashlib
import os
import pathlib

import numpy as np
import pytest

from jaxtrain.data.metadata import FileInfo, StoreError
from jaxtrain.data.storage import StoredFiles, local_path, open_directory

VALUES = np.arange(60, dtype="<u4")


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    path = str(tmp_path) if request.param == "disk" else f"memory://{tmp_path.name}/"
    for name, values in (("one", VALUES), ("two", VALUES + 100)):
        open_directory(path).write(name, values.tobytes()).result()
    return path


def info(content):
    return FileInfo(len(content), hashlib.sha256(content).hexdigest())


def test_pieces_go_to_their_offsets_from_several_files(place):
    out = np.zeros(8, np.int64)
    StoredFiles(place).gather([("one", 3, 2, 5), ("two", 0, 3, 1)], VALUES.dtype, out)
    assert out.tolist() == [0, 100, 101, 102, 0, 3, 4, 0]


def test_entries_may_be_rows(place):
    out = np.zeros((4, 3), np.float64)
    StoredFiles(place).gather([("one", 2, 2, 1), ("two", 19, 1, 3)], VALUES.dtype, out)
    assert out.tolist() == [[0, 0, 0], [6, 7, 8], [9, 10, 11], [157, 158, 159]]


def test_files_of_the_right_size_and_content_pass(place):
    files = {"one": info(VALUES.tobytes())}
    StoredFiles(place).check_sizes(files, "index")
    StoredFiles(place).check_content(files, "index")


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"none": FileInfo(1, "")}, "none: the file is missing"),
        ({"one": FileInfo(241, "")}, "one: shorter than the 241 bytes of index"),
        ({"one": FileInfo(239, "")}, "one: longer than the 239 bytes of index"),
    ],
)
def test_missing_shorter_and_longer_files_are_named(place, stated, message):
    with pytest.raises(StoreError, match=message) as error:
        StoredFiles(place).check_sizes(stated, "index")
    assert str(error.value).startswith(f"{place}/")


def test_other_content_is_named(place):
    with pytest.raises(StoreError, match=r"one: its content has changed .*differs from index"):
        StoredFiles(place).check_content({"one": info(bytes(240))}, "index")


def test_reading_past_the_end_says_that_the_file_changed(place):
    with pytest.raises(StoreError, match="one: changed after it was opened"):
        StoredFiles(place).read("one", 230, 250)


def test_whole_file_or_none(place):
    assert StoredFiles(place).whole("one") == VALUES.tobytes()
    assert StoredFiles(place).whole("none") is None


def test_local_path_knows_what_lies_on_this_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert local_path("a/b") == str(pathlib.Path(os.getcwd()) / "a/b")
    assert local_path("file:///x/y") == "/x/y"
    assert local_path("gs://bucket/x") is None
