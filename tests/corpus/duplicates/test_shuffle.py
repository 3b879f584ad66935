import collections

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.duplicates import shuffle

RECORD = np.dtype([("key", "u8"), ("other", "i8")])
PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=30)


def _records(pairs):
    return np.array(pairs, RECORD)


def test_partition_gets_the_records_of_its_keys_from_all_folders(tmp_path):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, (3, 50), dtype=np.uint64)
    folders, expected = [], collections.defaultdict(list)
    for number, row in enumerate(keys):
        records = np.zeros(50, RECORD)
        records["key"], records["other"] = row, np.arange(50)
        partitions = shuffle.partition_of(row, 7)
        folders.append(shuffle.scatter(tmp_path / f"{number}", records, partitions, 7))
        for key, other in records.tolist():
            expected[key * 7 // 2**64].append((key, other))
    for partition in range(7):
        assert shuffle.gather(folders, partition, RECORD).tolist() == expected[partition]


def test_nothing_is_gathered_from_no_folders():
    assert len(shuffle.gather([], 0, RECORD)) == 0


def test_partitions_hold_a_bounded_number_of_bytes():
    assert shuffle.num_partitions(0) == 1
    assert shuffle.num_partitions(shuffle.PARTITION_BYTES) == 1
    assert shuffle.num_partitions(shuffle.PARTITION_BYTES + 1) == 2


@given(PAIRS)
def test_runs_end_where_a_column_changes(pairs):
    records = _records(sorted(pairs))
    ends = shuffle.run_ends([records["key"], records["other"]])
    counts = collections.Counter(pairs)
    assert np.diff(ends, prepend=0).tolist() == [counts[pair] for pair in sorted(counts)]


@given(PAIRS)
def test_repeated_leaves_out_keys_that_occur_once(pairs):
    counts = collections.Counter(key for key, _ in pairs)
    found = shuffle.repeated(_records(pairs), "key", ["other"])
    assert found.tolist() == sorted(pair for pair in pairs if counts[pair[0]] > 1)
