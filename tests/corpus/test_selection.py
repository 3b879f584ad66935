import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.selection import ascending, at_most, kth_smallest

VALUES = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.integers(2**48 - 2, 2**48 + 2))
FILES = st.lists(st.lists(st.tuples(VALUES, VALUES), max_size=6), min_size=1, max_size=4)


@given(FILES)
def test_kth_smallest_is_that_of_all_rows_sorted(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("rows")
    paths = []
    for index, rows in enumerate(files):
        paths.append(folder / f"{index}.npz")
        columns = [np.array([row[i] for row in rows], np.uint64) for i in range(2)]
        np.savez(paths[-1], a=columns[0], b=columns[1])
    ordered = sorted(itertools.chain(*files))
    for k in {1, len(ordered) // 2, len(ordered)} - {0}:
        if k <= len(ordered):
            assert kth_smallest(paths, ("a", "b"), k) == ordered[k - 1]


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=10), st.tuples(VALUES, VALUES))
def test_at_most_compares_rows_column_by_column(rows, limit):
    columns = [np.array([row[i] for row in rows], np.uint64) for i in range(2)]
    assert at_most(columns, limit).tolist() == [row <= limit for row in rows]


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_ascending_keeps_the_order_of_floats(values):
    keys = ascending(np.array(values)).tolist()
    for a, b in itertools.pairwise(range(len(values))):
        assert (values[a] < values[b]) == (keys[a] < keys[b])
        assert (values[a] == values[b]) == (keys[a] == keys[b])
