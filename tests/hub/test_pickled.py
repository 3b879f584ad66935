import os
import pickle

import ml_dtypes
import numpy as np
import pytest

from jaxtrain.hub.directory import open_tensors
from jaxtrain.hub.pickled import PickledFile


@pytest.mark.reference
def test_tensors_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    values = torch.arange(6.0).reshape(2, 3)
    state = {"a": values, "b": (values / 3).to(torch.bfloat16), "c": values.T}
    torch.save(state, tmp_path / "pytorch_model.bin")
    found = open_tensors(tmp_path, allow_pickle=True)
    assert found.entries["b"][:2] == ("BF16", (2, 3))
    np.testing.assert_array_equal(found.read("a"), values.numpy())
    np.testing.assert_array_equal(found.read("c"), values.numpy().T)
    expected = (values.numpy() / np.float32(3)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.read("b"), expected)


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.reference
def test_a_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path):
    torch = pytest.importorskip("torch")
    trapped = tmp_path / "trapped"
    for number, make in enumerate((torch.save, lambda x, path: path.write_bytes(pickle.dumps(x)))):
        path = tmp_path / f"{number}.bin"
        make({"a": Trap(trapped)}, path)
        with pytest.raises(ValueError, match="is not a plain file of tensors"):
            PickledFile(path)
    assert not trapped.exists()


@pytest.mark.reference
def test_other_things_than_tensors_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.zeros(2), "step": 3}, tmp_path / "x.bin")
    with pytest.raises(ValueError, match="holds other things than tensors: step"):
        PickledFile(tmp_path / "x.bin")
