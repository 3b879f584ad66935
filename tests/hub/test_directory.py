import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxtrain.hub.directory import open_tensors, read_config
from tests.hub.tiny import tensors, write


@pytest.mark.parametrize("shards", [1, 2])
def test_one_file_and_several_hold_the_same(tmp_path, shards):
    content = tensors()
    found = open_tensors(write(tmp_path, shards=shards))
    assert set(found.entries) == set(content)
    for name, expected in content.items():
        np.testing.assert_array_equal(found.read(name), expected)


def changed_index(directory, change):
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(change(index)))


def test_an_index_that_names_absent_files_lists_them_all(tmp_path):
    write(tmp_path, shards=3)
    for number in (1, 3):
        (tmp_path / f"model-{number}-of-3.safetensors").unlink()
    with pytest.raises(ValueError, match=r"names model-1-of-3.*names model-3-of-3.*, which is abs"):
        open_tensors(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x", "a/b.safetensors", "..", "", "a/../../x.safetensors"]
)
def test_a_path_out_of_the_directory_is_refused(tmp_path, name):
    inside = write(tmp_path / "model", shards=2)
    save_file(tensors(), tmp_path / "x.safetensors")

    def climb(index):
        return {"weight_map": {**index["weight_map"], "lm_head.weight": name}}

    changed_index(inside, climb)
    with pytest.raises(ValueError, match=r"which is not a file beside it"):
        open_tensors(inside)


def test_an_index_that_lies_about_a_tensor_is_refused(tmp_path):
    write(tmp_path, shards=2)
    lie = {"a": "model-1-of-2.safetensors"}
    changed_index(tmp_path, lambda index: {"weight_map": index["weight_map"] | lie})
    with pytest.raises(ValueError, match=r"says that a is in model-1-of-2.*has no such tensor"):
        open_tensors(tmp_path)
    changed_index(tmp_path, lambda index: {"weight_map": []})
    with pytest.raises(ValueError, match="has no weight_map"):
        open_tensors(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    write(tmp_path, shards=2)
    content = tensors()
    for number in (1, 2):
        save_file(content, tmp_path / f"model-{number}-of-2.safetensors")
    with pytest.raises(ValueError, match=r"lm_head\.weight is in model-1.* and again in model-2"):
        open_tensors(tmp_path)


def test_damaged_files_are_all_named(tmp_path):
    write(tmp_path, shards=2)
    for number in (1, 2):
        (tmp_path / f"model-{number}-of-2.safetensors").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(ValueError, match=r"model-1-of-2\.\w+ is not a whole.*model-2-of-2\.\w+ is"):
        open_tensors(tmp_path)


def test_a_directory_without_a_model_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        read_config(tmp_path)
    with pytest.raises(ValueError, match=r"has no weights: neither model\.safetensors nor"):
        open_tensors(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="holds a list, but must hold an object"):
        read_config(tmp_path)


def test_pickled_weights_are_refused_unless_asked_for(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ValueError, match=r"only pickled weights \(pytorch_model\.bin\).*allow_pic"):
        open_tensors(tmp_path)
