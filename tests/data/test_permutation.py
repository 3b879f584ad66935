import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data.permutation import hash_indexes, make_key, mix, permute


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_permutation_of_a_range_takes_each_place_once(size, key):
    places = permute(np.arange(size), size, np.uint64(key))
    assert np.array_equal(np.sort(places), np.arange(size))


@pytest.mark.parametrize("size", [1, 2**31 + 11, 2**40 + 1, 10**13])
def test_place_is_in_range_and_depends_on_index_and_key_alone(size):
    indexes = np.array([0, size // 3, size - 1])
    together = permute(indexes, size, np.uint64(7))
    alone = [permute(np.array([i]), size, np.uint64(7))[0] for i in indexes]
    assert together.tolist() == alone
    assert ((together >= 0) & (together < size)).all()


def test_each_index_may_have_a_key_of_its_own():
    keys = np.array([1, 2, 1], np.uint64)
    mixed = permute(np.array([4, 4, 5]), 100, keys)
    assert mixed[[0, 2]].tolist() == permute(np.array([4, 5]), 100, np.uint64(1)).tolist()
    assert mixed[1] == permute(np.array([4]), 100, np.uint64(2))[0]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 200])
def test_permutations_of_many_keys_are_uniform(size):
    """Pearson's χ² of where each index lands and of the steps between neighbours."""
    num_keys = 3000
    keys = hash_indexes(make_key("test"), np.arange(num_keys))
    places = permute(np.tile(np.arange(size), num_keys), size, np.repeat(keys, size))
    places = places.reshape(num_keys, size)
    landed = np.array([np.bincount(column, minlength=size) for column in places.T])
    steps = np.bincount((np.diff(places) % size).ravel(), minlength=size)[1:]
    for counts, freedom in ((landed, (size - 1) ** 2), (steps, size - 2)):
        expected = counts.mean()
        chi2 = ((counts - expected) ** 2 / expected).sum()
        # Mean `freedom`, standard deviation √(2·freedom): 5 of them beyond are not chance. Steps of
        # one permutation depend on each other a little, hence a floor for small sizes.
        assert chi2 < freedom + 5 * np.sqrt(2 * freedom) + 10


def test_mix_is_splitmix64():
    """The first outputs of SplitMix64 seeded with 0, as published with its reference code."""
    state = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(x) for x in mix(state)] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_order_is_the_one_that_running_jobs_rely_on():
    """These values may never change: a resumed run would read other rows."""
    key = make_key("rows", 0, "web")
    assert key == 5354775682714645152
    for epoch, expected in enumerate([[1, 6, 3, 0, 7, 4, 5, 2], [2, 4, 1, 3, 6, 5, 7, 0]]):
        keys = hash_indexes(key, np.array([epoch]))
        assert permute(np.arange(8), 8, keys).tolist() == expected


def test_keys_of_different_parts_differ():
    assert len({make_key("a", 1), make_key("a", 2), make_key("b", 1), make_key("a1")}) == 4
