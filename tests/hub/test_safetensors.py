import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxtrain.hub import safetensors
from jaxtrain.hub.safetensors import Planned, SafetensorsFile

CONTENT = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.linspace(-3, 3, 5).astype(ml_dtypes.bfloat16),
    "c": np.zeros((0, 4), np.float16),
    "d": np.array(7, np.float32),
}


@pytest.fixture
def path(tmp_path):
    save_file(CONTENT, tmp_path / "x.safetensors")
    return tmp_path / "x.safetensors"


def test_reads_what_the_package_wrote(path):
    file = SafetensorsFile(path)
    assert set(file.entries) == set(CONTENT)
    for name, expected in CONTENT.items():
        got = file.read(name)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_package_reads_what_is_written(tmp_path, dtype):
    wanted = {"x": np.arange(15).reshape(3, 5).astype(dtype), "yé": np.ones((2,), dtype)}
    plan = [Planned(name, x.shape) for name, x in wanted.items()]
    transposed = [np.asfortranarray(x) for x in wanted.values()]
    safetensors.write(tmp_path / "y.safetensors", plan, np.dtype(dtype), transposed)
    loaded = load_file(tmp_path / "y.safetensors")
    assert list(loaded) == list(wanted)
    for name, expected in wanted.items():
        assert loaded[name].dtype == expected.dtype
        np.testing.assert_array_equal(loaded[name], expected)


def test_a_file_that_could_not_be_written_is_absent(tmp_path):
    def tensors():
        yield np.zeros(3, np.float32)
        raise OSError("disk full")

    plan = [Planned("a", (3,)), Planned("b", (3,))]
    with pytest.raises(OSError, match="disk full"):
        safetensors.write(tmp_path / "z", plan, np.dtype(np.float32), tensors())
    assert list(tmp_path.iterdir()) == []


def rewritten(path, change):
    """The file with its header changed; the length is corrected."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    text = json.dumps(change(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    return path


def changed(name, **fields):
    return lambda header: {**header, name: {**header[name], **fields}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("a", dtype="F33"), "a has the unknown dtype F33"),
        (changed("a", shape=[2, -3]), "a has a shape or range that is negative"),
        (changed("a", shape=[2, 2]), r"a of shape \[2, 2\] does not fill its 24 bytes"),
        (changed("a", data_offsets=[8, 32]), "begins at byte"),
        (changed("a", data_offsets=[0, 10**15], shape=[10**15 // 4]), "begins at byte|end at byte"),
        (lambda header: {**header, "e": header["a"]}, "begins at byte"),
        (lambda header: {k: v for k, v in header.items() if k != "b"}, "begins at byte|end at"),
        (lambda header: {**header, "a": {"dtype": "F32"}}, "shape"),
        (lambda header: [1, 2], "is not a whole safetensors file"),
    ],
)
def test_a_header_that_lies_is_refused(path, change, message):
    with pytest.raises(ValueError, match=message):
        SafetensorsFile(rewritten(path, change))


@pytest.mark.parametrize("length", [2**63, 10**9, 5_000])
def test_a_header_of_absurd_size_is_refused(path, length):
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(ValueError, match=rf"its header would have {length:,} bytes, but the file"):
        SafetensorsFile(path)


@pytest.mark.parametrize("num_bytes", [0, 3, 60, -1])
def test_a_cut_file_is_refused(path, num_bytes):
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        SafetensorsFile(path)


def test_a_name_that_stands_twice_is_refused(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].replace(b'"d":', b'"a":')
    path.write_bytes(content[:8] + header + content[8 + length :])
    with pytest.raises(ValueError, match="a name stands twice"):
        SafetensorsFile(path)
