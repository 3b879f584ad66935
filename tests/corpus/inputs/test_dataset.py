import json
import pathlib

import pyarrow as pa
import pytest

from jaxtrain.corpus.inputs import ReadingConfig, plan, read
from jaxtrain.corpus.inputs.dataset import data_files


def _save(folder, *shards, **state):
    """Writes the files that `datasets` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{n:05}-of-{len(shards):05}.arrow" for n in range(len(shards))]
    for name, texts in zip(names, shards, strict=True):
        table = pa.table({"text": texts})
        with pa.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names], **state})
    )


def _items(folder):
    reading = ReadingConfig(malformed="count")
    return [item for unit in plan([str(folder)], reading) for item in read(unit, reading)]


def test_rows_of_all_shards_are_read_in_order(tmp_path):
    _save(tmp_path / "wiki", ["a", "b", "c"], ["d"])
    items = _items(tmp_path / "wiki")
    assert [item.text for item in items] == ["a", "b", "c", "d"]
    assert [item.metadata["origin"] for item in items][2:] == [
        "data-00000-of-00002.arrow:2",
        "data-00001-of-00002.arrow:0",
    ]
    assert items[0].source == "wiki"


def test_what_the_library_saves_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    saved = datasets.Dataset.from_dict({"text": ["a", "b"], "n": [1, 2]})
    saved.shuffle(seed=1).save_to_disk(tmp_path / "d", num_shards=2)
    items = _items(tmp_path / "d")
    assert sorted((item.text, item.metadata["n"]) for item in items) == [("a", 1), ("b", 2)]
    assert [item.text for item in items] == saved.shuffle(seed=1)["text"][:]
    datasets.DatasetDict({"train": saved, "test": saved}).save_to_disk(tmp_path / "splits")
    with pytest.raises(ValueError, match=r"holds the splits train, test; name one: .*/train"):
        data_files(str(tmp_path / "splits"))


def test_truncated_shard_is_counted_and_its_whole_batches_are_kept(tmp_path):
    _save(tmp_path, ["a", "b", "c", "d"])
    [file] = data_files(str(tmp_path))
    pathlib.Path(file).write_bytes(pathlib.Path(file).read_bytes()[:-100])
    *kept, fault = _items(tmp_path)
    assert [item.text for item in kept] == ["a", "b"]
    assert (fault.reason, fault.offset) == ("damaged file", 2)


def test_rows_picked_by_an_index_are_refused(tmp_path):
    _save(tmp_path, ["a"], _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(ValueError, match=r"rows picked by an index; .*flatten_indices"):
        data_files(str(tmp_path))


def test_folder_without_a_saved_set_has_no_data_files(tmp_path):
    assert data_files(str(tmp_path)) == []
