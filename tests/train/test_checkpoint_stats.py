import math

import ml_dtypes
import numpy as np
import pytest

from jaxtrain.train import checkpoint, checkpoint_stats


def save(directory, *states):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_CHUNK_BYTES", 4096)  # several chunks a leaf
        with checkpoint.Checkpoints(directory, checkpoint.CheckpointConfig(1)) as checkpoints:
            for step, state in enumerate(states, start=1):
                checkpoints.save(step, state, {})


@pytest.fixture(scope="module")
def values():
    rng = np.random.default_rng(0)
    return {
        "float32": rng.standard_normal((40, 100), dtype=np.float32) * np.float32(1e-3),
        "bfloat16": rng.standard_normal((7, 999)).astype(ml_dtypes.bfloat16),
        "int32": rng.integers(-(2**31), 2**31, 5000, dtype=np.int32),
        "bool": rng.random(3000) < 0.5,
        "float8": rng.standard_normal(3000).astype(ml_dtypes.float8_e4m3fn),
        "scalar": np.float32(-2.5),
    }


@pytest.fixture(scope="module")
def measured(values, tmp_path_factory):
    directory = tmp_path_factory.mktemp("measured")
    save(directory, values)
    return {name: checkpoint_stats.measure(directory, 1, name) for name in values}


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "bool", "float8", "scalar"])
def test_stats_are_those_of_float64(values, measured, name):
    wide, stats = values[name].astype(np.float64), measured[name]
    assert stats.norm == pytest.approx(np.linalg.norm(wide.reshape(-1)), rel=1e-12)
    assert (stats.min, stats.max, stats.non_finite) == (wide.min(), wide.max(), 0)


def test_stats_count_what_is_not_finite_and_leave_it_out(tmp_path):
    mixed = np.array([np.nan, 3.0, -np.inf, -4.0, np.inf], np.float32)
    save(tmp_path, {"mixed": mixed, "none": np.full(3, np.nan, np.float32)})
    expected = checkpoint_stats.Stats(norm=5.0, min=-4.0, max=3.0, non_finite=3)
    assert checkpoint_stats.measure(tmp_path, 1, "mixed") == expected
    nothing = checkpoint_stats.Stats(norm=0.0, min=None, max=None, non_finite=3)
    assert checkpoint_stats.measure(tmp_path, 1, "none") == nothing


def compare(directory, a, b):
    save(directory, a, b)
    return {each.path: each for each in checkpoint_stats.compare(directory, 1, 2)}


def test_differences_are_those_of_float64(tmp_path, values):
    rng = np.random.default_rng(1)
    changed = {**values, "float32": values["float32"].copy()}
    places = rng.choice(4000, 17, replace=False)
    changed["float32"].reshape(-1)[places] += np.float32(0.25)
    found = compare(tmp_path, values, changed)
    wide_a, wide_b = (x["float32"].astype(np.float64) for x in (values, changed))
    difference = found.pop("float32")
    assert difference.num_differing == 17
    assert difference.max_abs == np.abs(wide_b - wide_a).max()
    rel_norm = np.linalg.norm(wide_b - wide_a) / np.linalg.norm(wide_a)
    assert difference.rel_norm == pytest.approx(rel_norm, rel=1e-12)
    assert all(each.is_equal for each in found.values())
    assert len(found) == len(values) - 1


def test_equality_is_of_bits(tmp_path):
    a = np.array([0.0, np.nan, np.inf, 1.0, 2.0], np.float32)
    b = np.array([-0.0, np.nan, np.inf, np.nan, 2.0], np.float32)
    difference = compare(tmp_path, {"x": a}, {"x": b})["x"]
    assert (difference.num_differing, difference.non_finite, difference.max_abs) == (2, 1, 0.0)
    assert not difference.is_equal


def test_same_nan_is_equal(tmp_path):
    x = np.array([np.nan, np.inf], np.float32)
    assert compare(tmp_path, {"x": x}, {"x": x.copy()})["x"].is_equal


def test_relative_norm_of_a_change_from_zero_is_none(tmp_path):
    a, b = np.zeros(3, np.float32), np.array([0.0, 3.0, 4.0], np.float32)
    difference = compare(tmp_path, {"x": a}, {"x": b})["x"]
    assert (difference.max_abs, difference.rel_norm) == (4.0, None)
    assert not math.isnan(difference.max_abs)


def test_leaves_of_one_step_and_of_another_shape_or_dtype_are_listed(tmp_path):
    a = {"only": np.zeros(1), "shape": np.zeros(2), "dtype": np.zeros(2), "same": np.zeros(2)}
    b = {"new": np.zeros(1), "shape": np.zeros(3), "dtype": np.zeros(2, np.float32)}
    found = compare(tmp_path, a, {**b, "same": np.zeros(2)})
    assert {path: each.not_compared for path, each in found.items()} == {
        "dtype": "float64[2] became float32[2]",
        "new": "only in step 2",
        "only": "only in step 1",
        "same": None,
        "shape": "float64[2] became float64[3]",
    }
    assert [path for path, each in found.items() if each.is_equal] == ["same"]
