import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxtrain.hub import save
from jaxtrain.hub.model import HubModel
from jaxtrain.hub.weights import Leaf, Weight
from tests.hub.families.parity import import_model
from tests.hub.tiny import tensors, write


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_was_imported_goes_back_bit_for_bit(tmp_path, dtype):
    content = tensors(dtype)
    imported = import_model(write(tmp_path / "in", content, {"torch_dtype": dtype}))
    imported.export(tmp_path / "out", dtype)
    again = load_file(tmp_path / "out" / "model.safetensors")
    assert set(again) == set(content)
    for name, expected in content.items():
        assert again[name].dtype == expected.dtype
        assert again[name].tobytes() == expected.tobytes(), name
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == dtype


def test_a_wider_dtype_is_the_exact_value(tmp_path):
    content = tensors("bfloat16")
    import_model(write(tmp_path / "in", content)).export(tmp_path / "out", "float32")
    again = load_file(tmp_path / "out" / "model.safetensors")
    for name, expected in content.items():
        np.testing.assert_array_equal(again[name], expected.astype(np.float32))


@pytest.mark.parametrize("read_bytes", [1, 2**28])
def test_shards_hold_every_tensor_once(tmp_path, monkeypatch, read_bytes):
    monkeypatch.setattr(save, "_READ_BYTES", read_bytes)
    content = tensors()
    imported = import_model(write(tmp_path / "in", content))
    imported.export(tmp_path / "out", shard_bytes=1500)
    out = tmp_path / "out"
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(out.glob("*.safetensors"))
    assert len(files) > 2
    found = {name: (path.name, x) for path in files for name, x in load_file(path).items()}
    assert {name: file for name, (file, _) in found.items()} == index["weight_map"]
    assert sum(len(load_file(path)) for path in files) == len(content)
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in content.values())
    for name, expected in content.items():
        np.testing.assert_array_equal(found[name][1], expected)
    # A file is as large as it may be, unless one tensor alone is larger.
    sizes = [sum(x.nbytes for x in load_file(path).values()) for path in files]
    assert max(sizes) <= 1500
    assert HubModel(out).config == imported.model.config


@pytest.mark.parametrize("num_matrices", [1, 2, 3, 5, 9, 12, 100])
def test_experts_are_read_a_few_at_a_time(monkeypatch, num_matrices):
    """Of 4 layers with 3 experts each, in the order in which they are written."""
    values = np.arange(4 * 3 * 5 * 2, dtype=np.float32).reshape(4, 3, 5, 2)
    weight, leaves = Weight("{L}.experts.{E}", "F D", "w"), {"w": Leaf("LEDF", values.shape)}
    monkeypatch.setattr(save, "_READ_BYTES", num_matrices * 5 * 2 * 4)
    parts = []

    def read(path, where):
        parts.append(values[where])
        return parts[-1]

    found = list(save._tensors(weight, np.dtype(np.float32), read, leaves))
    np.testing.assert_array_equal(found, values.reshape(12, 5, 2).swapaxes(1, 2))
    assert max(part.size for part in parts) <= num_matrices * 5 * 2
    assert sum(part.size for part in parts) == values.size


def test_a_failed_export_leaves_nothing(tmp_path):
    def fail():
        with save.whole_directory(tmp_path / "out") as part:
            (part / "file").write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    with save.whole_directory(tmp_path / "out") as part:  # empty: as good as new
        (part / "file").write_text("whole")
    assert (tmp_path / "out" / "file").read_text() == "whole"
    with pytest.raises(ValueError, match=r"--out=.* is there already"):
        save.whole_directory(tmp_path / "out").__enter__()
    assert (tmp_path / "out" / "file").read_text() == "whole"


def test_generation_config_is_the_one_given_or_the_token_ids(tmp_path):
    imported = import_model(write(tmp_path / "in"))
    imported.export(tmp_path / "a")
    made = json.loads((tmp_path / "a" / "generation_config.json").read_text())
    assert made == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    imported.export(tmp_path / "b", generation={"eos_token_id": [2, 3]}, files={"x": b"y"})
    made = json.loads((tmp_path / "b" / "generation_config.json").read_text())
    assert made == {"eos_token_id": [2, 3]}
    assert (tmp_path / "b" / "x").read_bytes() == b"y"
