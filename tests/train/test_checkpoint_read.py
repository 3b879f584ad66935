import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxtrain.train import checkpoint, checkpoint_read

LEAVES = {
    "scalar": np.int32(5),
    "flat": np.arange(7, dtype=np.float32),
    "deep": {"bf16": np.arange(24, dtype=np.float32).reshape(2, 3, 4).astype(ml_dtypes.bfloat16)},
    "odd/name.with dots": np.arange(15, dtype=np.uint8).reshape(3, 5),
}
STACK = np.random.default_rng(1).standard_normal((3, 16, 160), dtype=np.float32)
EXPERTS = np.random.default_rng(3).standard_normal((2, 3, 16, 16), dtype=np.float32)
THIN = np.random.default_rng(2).standard_normal((40, 4, 4), dtype=np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Steps 1 and 2 of small leaves, a leaf in 8 shards of several chunks each, and stacks."""
    directory = tmp_path_factory.mktemp("saved")
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_CHUNK_BYTES", 1024)
        patch.setattr(checkpoint, "_ROW_BYTES", 512)
        with checkpoint.Checkpoints(directory, checkpoint.CheckpointConfig(1)) as checkpoints:
            for step in (1, 2):
                values = rng.standard_normal((64, 96), dtype=np.float32)
                sharded = jax.device_put(values, NamedSharding(mesh, P("fsdp")))
                stack = jax.device_put(STACK, NamedSharding(mesh, P(None, "fsdp")))
                state = {
                    **LEAVES,
                    "sharded": sharded,
                    "stack": stack,
                    "experts": EXPERTS,
                    "thin": THIN,
                }
                checkpoints.save(step, state, {"position": step})
    return directory


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("scalar", LEAVES["scalar"]),
        ("flat", LEAVES["flat"]),
        ("deep.bf16", LEAVES["deep"]["bf16"]),
        ("odd/name.with dots", LEAVES["odd/name.with dots"]),
    ],
)
def test_leaf_is_read_back_with_its_dtype(saved, path, expected):
    ((values,),) = checkpoint_read.read_chunks(saved, path, 1)
    assert values.dtype == expected.dtype
    np.testing.assert_array_equal(values, expected)


def test_chunks_of_a_sharded_leaf_cover_it_once(saved):
    expected = np.random.default_rng(0).standard_normal((64, 96), dtype=np.float32)
    chunks = [chunk for (chunk,) in checkpoint_read.read_chunks(saved, "sharded", 1)]
    assert len(chunks) > 8
    assert max(chunk.nbytes for chunk in chunks) <= 1024
    rows, columns = chunks[0].shape
    corners = itertools.product(range(0, 64, rows), range(0, 96, columns))
    for (row, column), chunk in zip(corners, chunks, strict=True):
        part = expected[row : row + rows, column : column + columns]
        np.testing.assert_array_equal(chunk, part)


@pytest.mark.parametrize(
    ("path", "expected", "num_together"),
    [("stack", STACK, (1,)), ("experts", EXPERTS, (1, 1)), ("thin", THIN, (10,))],
)
def test_large_layers_and_experts_are_stored_apart(saved, path, expected, num_together):
    """A device has 1,280 bytes of a layer, 1,024 of an expert; 64 are not worth a chunk."""
    chunks = [chunk for (chunk,) in checkpoint_read.read_chunks(saved, path, 1)]
    assert {chunk.shape[: len(num_together)] for chunk in chunks} == {num_together}
    assert max(chunk.nbytes for chunk in chunks) <= 1024
    found = checkpoint_read.open_leaf(saved, 1, path).read().result()
    np.testing.assert_array_equal(found, expected)


def test_chunks_of_two_steps_come_side_by_side(saved):
    pairs = list(checkpoint_read.read_chunks(saved, "sharded", 1, 2))
    alone = [chunk for (chunk,) in checkpoint_read.read_chunks(saved, "sharded", 2)]
    for (a, b), expected in zip(pairs, alone, strict=True):
        assert a.shape == b.shape
        np.testing.assert_array_equal(b, expected)


def test_record_has_the_table_of_leaves_and_the_metadata(saved):
    record = checkpoint_read.read_record(saved, 2)
    assert record.metadata == {"position": 2}
    assert {path: str(leaf) for path, leaf in record.leaves.items()} == {
        "deep.bf16": "bfloat16[2,3,4]",
        "experts": "float32[2,3,16,16]",
        "flat": "float32[7]",
        "odd/name.with dots": "uint8[3,5]",
        "scalar": "int32[]",
        "sharded": "float32[64,96]",
        "stack": "float32[3,16,160]",
        "thin": "float32[40,4,4]",
    }
    assert record.leaves["sharded"].sharding == "(fsdp) on fsdp=8"


def test_size_of_an_entry_is_that_of_its_files(saved):
    entry = checkpoint_read.find_entries(saved)[0]
    assert entry.num_bytes() == sum(
        p.stat().st_size for p in (saved / "1").rglob("*") if p.is_file()
    )
    assert entry.num_bytes() > 64 * 96 * 4 * 0.8


def test_format_of_a_later_version_is_not_guessed_at(tmp_path):
    with checkpoint.Checkpoints(tmp_path, checkpoint.CheckpointConfig(1)) as checkpoints:
        checkpoints.save(1, {"w": jnp.zeros(1)}, {})
    path = tmp_path / "1" / "run" / "metadata.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ValueError, match=r"not whole .*format 2, this version reads 1"):
        checkpoint_read.read_record(tmp_path, 1)


def test_steps_are_told_apart_by_what_can_be_done_with_them(tmp_path):
    numbers = range(1, 7)
    with checkpoint.Checkpoints(tmp_path, checkpoint.CheckpointConfig(1, keep_last=9)) as saving:
        for step in numbers:
            saving.save(step, {"w": jnp.zeros(1)}, {})
    records = {step: tmp_path / str(step) / "run" / "metadata.json" for step in numbers}
    records[2].unlink()
    records[3].write_text("[]")
    records[4].unlink()
    records[4].symlink_to(records[4])  # an OSError that root meets too
    records[5].write_text(records[5].read_text().replace('"format": 1', '"format": 2'))
    (tmp_path / "6" / "state" / "manifest.ocdbt").unlink()
    (tmp_path / "7.deleting").mkdir()
    (tmp_path / "8.orbax-checkpoint-tmp").mkdir()
    found = {e.step: e.condition.value for e in checkpoint_read.find_entries(tmp_path)}
    assert found == {
        1: "whole", 2: "damaged", 3: "damaged", 4: "unreadable", 5: "unreadable", 6: "damaged",
        7: "leftover", 8: "leftover",
    }  # fmt: skip
    assert checkpoint_read.whole_steps(tmp_path) == [1]


def test_damaged_arrays_are_named(tmp_path):
    with checkpoint.Checkpoints(tmp_path, checkpoint.CheckpointConfig(1)) as checkpoints:
        checkpoints.save(1, {"w": np.random.default_rng(0).random(10_000)}, {})
    files = [path for path in tmp_path.rglob("ocdbt.process_0/d/*") if path.stat().st_size > 9000]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(
        ValueError, match=r"w of step 1 in .* cannot be read; that checkpoint is damaged"
    ):
        list(checkpoint_read.read_chunks(tmp_path, "w", 1))


def test_a_missing_directory_holds_nothing(tmp_path):
    assert checkpoint_read.find_entries(tmp_path / "none") == []
    with pytest.raises(ValueError, match=r"step 1 in .* does not exist; none there is whole"):
        checkpoint_read.read_record(tmp_path / "none", 1)
