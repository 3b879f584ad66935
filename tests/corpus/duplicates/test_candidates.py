import collections
import itertools

import numpy as np
import pytest

from jaxtrain.corpus.duplicates import shuffle
from jaxtrain.corpus.duplicates.candidates import find_groups
from jaxtrain.corpus.duplicates.identity import places
from jaxtrain.corpus.executors import LocalExecutor


@pytest.mark.parametrize("partition_bytes", [100, shuffle.PARTITION_BYTES])
def test_groups_are_the_documents_that_share_a_key_of_a_column(
    tmp_path, monkeypatch, partition_bytes
):
    monkeypatch.setattr(shuffle, "PARTITION_BYTES", partition_bytes)
    rng = np.random.default_rng(0)
    expected = collections.defaultdict(set)
    observed = []
    for chunk in range(3):
        keys = rng.integers(0, 6, (8, 2), dtype=np.uint64) << np.uint64(61)
        has_shingles = rng.integers(0, 4, 8)
        observed.append(tmp_path / f"{chunk}.npz")
        np.savez(observed[-1], keys=keys, num_shingles=has_shingles)
        for row, column in itertools.product(np.flatnonzero(has_shingles), range(2)):
            expected[column, int(keys[row, column])].add(int(places(chunk, row)))
    folder = tmp_path / "spill"
    partitions = find_groups(observed, 24, 2, LocalExecutor(1), folder)
    assert (len(partitions) > 1) == (partition_bytes == 100)
    found = []
    for partition in partitions:
        members, ends = partition.load()
        parts = np.split(members, ends[:-1]) if len(ends) else []
        assert partition.largest == max(map(len, parts), default=0)
        found += [sorted(part.tolist()) for part in parts]
    assert sorted(found) == sorted(sorted(each) for each in expected.values() if len(each) > 1)
    pairs = [0, 0]
    for (column, _), group in expected.items():
        pairs[column] += len(group) * (len(group) - 1) // 2
    assert sum(partition.pairs for partition in partitions).tolist() == pairs


def test_no_documents_have_no_groups(tmp_path):
    (partition,) = find_groups([], 0, 1, LocalExecutor(1), tmp_path)
    assert (partition.pairs.tolist(), partition.largest) == ([0], 0)
