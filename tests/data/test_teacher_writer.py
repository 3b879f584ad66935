import pathlib

import numpy as np
import pytest

from jaxtrain.data import teacher_writer
from jaxtrain.data.config import DataConfig
from jaxtrain.data.metadata import StoreError
from jaxtrain.data.plan_rows import plan_rows
from jaxtrain.data.sources import Source
from jaxtrain.data.store import Store
from jaxtrain.data.teacher import TeacherStore
from jaxtrain.data.teacher_writer import TeacherWriter

K = 3
LENGTHS = [5, 1, 9, 0, 3, 12, 7, 2, 2]
SETTINGS = {"weights": "w" * 64, "temperature": 1.0}


@pytest.fixture
def source(make_store, numbered_documents):
    path = make_store(numbered_documents(LENGTHS), part_tokens=10)
    return Source("a", Store(path), DataConfig(seq_len=8, packing="best_fit"), 0)


def say(block):
    """A teacher whose entries follow from the token alone: ids t + 1, t + 2, …; logs -t/8 - j."""
    tokens = block.batch.inputs[..., None]
    ids = (tokens + np.arange(1, K + 1)) % 300
    return ids, -(tokens / 8 + np.arange(K)).astype(np.float32)


def write_all(path, source, batch_size=2, settings=SETTINGS):
    writer = TeacherWriter(str(path), source, k=K, settings=settings)
    for block in plan_rows(source, batch_size, first=writer.num_rows):
        writer.write(block, *say(block))
    writer.finish()
    return TeacherStore(str(path))


def everything(path):
    return {file.name: file.read_bytes() for file in pathlib.Path(path).iterdir() if file.is_file()}


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_entries_lie_at_their_tokens_whatever_the_rows(source, tmp_path, batch_size):
    write_all(tmp_path, source, batch_size)
    tokens = np.arange(sum(LENGTHS))
    ids = np.fromfile(tmp_path / "teacher.ids", "<u2").reshape(-1, K)
    logprobs = np.fromfile(tmp_path / "teacher.logprobs", "<f2").reshape(-1, K)
    np.testing.assert_array_equal(ids, tokens[:, None] + np.arange(1, K + 1))
    np.testing.assert_array_equal(logprobs, -(tokens[:, None] / 8 + np.arange(K)))
    assert set(everything(tmp_path)) == {"teacher.ids", "teacher.logprobs", "teacher.json"}


@pytest.mark.parametrize("killed_after", [0, 1, 3, 5])
def test_interrupted_writing_goes_on_and_ends_in_the_same_files(
    source, tmp_path, monkeypatch, killed_after
):
    """Killed where a block was written and its progress not; the block is made again."""
    expected = write_all(tmp_path / "whole", source, batch_size=1).metadata
    writer = TeacherWriter(str(tmp_path / "killed"), source, k=K, settings=SETTINGS)
    for block in plan_rows(source, 1):
        # The last one before the kill leaves no trace but its bytes.
        limit = 1 if block.stop_row <= killed_after else 1 << 30
        monkeypatch.setattr(teacher_writer, "_SAVED_BYTES", limit)
        writer.write(block, *say(block))
        if block.stop_row > killed_after:
            break
    with pytest.raises(StoreError, match="no teacher's output here"):
        TeacherStore(str(tmp_path / "killed"))
    again = TeacherWriter(str(tmp_path / "killed"), source, k=K, settings=SETTINGS)
    assert again.num_rows == killed_after
    assert write_all(tmp_path / "killed", source, batch_size=2).metadata == expected
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")


def test_output_that_is_there_is_found(source, tmp_path):
    write_all(tmp_path, source)
    before = everything(tmp_path)
    again = TeacherWriter(str(tmp_path), source, k=K, settings=SETTINGS)
    assert again.done
    assert list(plan_rows(source, 2, first=again.num_rows)) == []
    again.finish()
    assert everything(tmp_path) == before


@pytest.mark.parametrize("finished", [True, False])
def test_output_of_another_teacher_is_not_overwritten(source, tmp_path, monkeypatch, finished):
    monkeypatch.setattr(teacher_writer, "_SAVED_BYTES", 1)
    if finished:
        write_all(tmp_path, source)
    else:
        block = next(plan_rows(source, 2))
        TeacherWriter(str(tmp_path), source, k=K, settings=SETTINGS).write(block, *say(block))
    for k, settings in ((K, {**SETTINGS, "temperature": 2.0}), (K - 1, SETTINGS)):
        with pytest.raises(StoreError, match="another teacher"):
            TeacherWriter(str(tmp_path), source, k=k, settings=settings)


@pytest.mark.parametrize("num_bytes", [None, 0, 7])
def test_unfinished_output_that_was_cut_short_is_refused(source, tmp_path, monkeypatch, num_bytes):
    """Its rows are not made again, and what is not there would be read as zeros."""
    monkeypatch.setattr(teacher_writer, "_SAVED_BYTES", 1)
    block = next(plan_rows(source, 2))
    TeacherWriter(str(tmp_path), source, k=K, settings=SETTINGS).write(block, *say(block))
    file = tmp_path / "teacher.logprobs"
    if num_bytes is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(StoreError, match=r"teacher\.logprobs has \d bytes, and .* or more are"):
        TeacherWriter(str(tmp_path), source, k=K, settings=SETTINGS)


def test_finishing_before_the_last_row_is_an_error(source, tmp_path):
    writer = TeacherWriter(str(tmp_path), source, k=K, settings=SETTINGS)
    block = next(plan_rows(source, 2))
    writer.write(block, *say(block))
    with pytest.raises(ValueError, match=r"2 of \d+ rows are written, \d+ of 41 tokens"):
        writer.finish()
    assert not (tmp_path / "teacher.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids, logs: (ids[:, :-1], logs[:, :-1]), r"must be of shape \(2, 8, 3\)"),
        (lambda ids, logs: (ids + 300, logs), "but the store's vocabulary has 300; leave out"),
        (lambda ids, logs: (ids, logs + np.nan), "log-probability is nan"),
        (lambda ids, logs: (ids, logs + 100), r"log-probability is \d+.*; they are at most 0"),
    ],
)
def test_what_is_no_entry_of_these_rows_is_refused(source, tmp_path, change, message):
    writer = TeacherWriter(str(tmp_path), source, k=K, settings=SETTINGS)
    block = next(plan_rows(source, 2))
    with pytest.raises(ValueError, match=message):
        writer.write(block, *change(*say(block)))


def test_rows_come_in_order(source, tmp_path):
    writer = TeacherWriter(str(tmp_path), source, k=K, settings=SETTINGS)
    block = next(plan_rows(source, 2, first=2))
    with pytest.raises(ValueError, match="row 2 came, and 0 is next"):
        writer.write(block, *say(block))


@pytest.mark.parametrize(
    ("path", "k", "message"),
    [
        ("memory://teacher/", 3, "is written to a local directory"),
        (None, 0, "k=0 must be from 1 to the vocabulary's 300 ids"),
        (None, 301, "k=301 must be from 1 to the vocabulary's 300 ids"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(source, tmp_path, path, k, message):
    with pytest.raises(ValueError, match=message):
        TeacherWriter(path or str(tmp_path), source, k=k, settings={})


@pytest.mark.parametrize("documents", [[], [[], []]])
def test_of_an_empty_store_nothing_is_said(make_store, tmp_path, documents):
    source = Source("a", Store(make_store(documents)), DataConfig(seq_len=8), 0)
    assert write_all(tmp_path, source).metadata.num_tokens == 0
