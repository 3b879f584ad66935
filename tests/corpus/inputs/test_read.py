import gzip
import json
import subprocess
import sys

import fsspec
import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import Malformed, ReadingConfig, plan, read, read_documents


def test_units_together_hold_every_document_of_all_inputs_in_order(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "b.txt").write_text("three")
    with gzip.open(tmp_path / "c.json.gz", "wt") as file:
        json.dump([{"text": "four"}, {"text": "five"}], file)
    inputs = [f"{tmp_path}/{name}" for name in ("c.json.gz", "a.jsonl", "b.txt")]
    texts = [document.text for document in read_documents(inputs)]
    assert texts == ["four", "five", "one", "two", "three"]
    units = plan(inputs, ReadingConfig(), unit_bytes=1)
    assert len(units) > 3
    assert [d.text for unit in units for d in read(unit, ReadingConfig())] == texts


def test_documents_of_object_storage_are_those_of_local_files(tmp_path):
    content = b'{"text": "one"}\n' * 10
    (tmp_path / "a.jsonl").write_bytes(content)
    fsspec.filesystem("memory").pipe("/read-test/a.jsonl", content)
    local, remote = (
        [d for unit in plan([spec], ReadingConfig(), 30) for d in read(unit, ReadingConfig())]
        for spec in (f"{tmp_path}/a.jsonl", "memory://read-test/a.jsonl")
    )
    assert local == remote
    assert len(local) == 10


def test_malformed_records_fail_unless_they_are_to_be_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nbad\n{"text": "two"}\n')
    [unit] = plan([f"{tmp_path}/a.jsonl"], ReadingConfig())
    with pytest.raises(
        ValueError, match=r"a\.jsonl:2: not JSON .*; mend or remove it, or set config\.reading\.mal"
    ):
        list(read(unit, ReadingConfig()))
    kinds = [type(item) for item in read(unit, ReadingConfig(malformed="count"))]
    assert kinds == [Document, Malformed, Document]


def test_too_many_malformed_records_fail_even_when_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nbad\n{"text": "two"}\n')
    lenient = ReadingConfig(malformed="count", max_malformed_frac=0.5)
    assert len(list(read_documents([f"{tmp_path}/a.jsonl"], lenient))) == 2
    with pytest.raises(ValueError, match="1 of 3 records are malformed, more than"):
        list(read_documents([f"{tmp_path}/a.jsonl"], ReadingConfig(malformed="count")))


def test_local_files_are_read_without_libraries_for_other_formats(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    program = f"""
import sys
from jaxtrain.corpus.inputs import read_documents
assert [d.text for d in read_documents([{str(tmp_path / "a.jsonl")!r}])] == ["one"]
print(sorted({{"fsspec", "warcio", "zstandard", "datasets", "jax"}} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
