import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.duplicates.simhash import block_keys, distance, fingerprints


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=7), max_size=5))
def test_bit_of_a_fingerprint_is_the_majority_of_shingles(texts):
    hashes = np.array([value for text in texts for value in text], np.uint64)
    found = fingerprints(hashes, np.array([len(text) for text in texts], np.int64))
    expected = [
        sum(1 << bit for bit in range(64) if 2 * sum(v >> bit & 1 for v in text) > len(text))
        for text in texts
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize("max_distance", [0, 1, 3, 7])
@given(value=st.integers(0, 2**64 - 1), bits=st.sets(st.integers(0, 63), max_size=7))
def test_fingerprints_within_the_distance_share_a_key(max_distance, value, bits):
    other = value
    for bit in sorted(bits)[:max_distance]:
        other ^= 1 << bit
    keys = block_keys(np.array([value, other], np.uint64), max_distance)
    assert keys.shape[1] == math.comb(max_distance + 3, 3)
    assert (keys[0] == keys[1]).any()


def test_unlike_fingerprints_share_no_key():
    keys = block_keys(np.array([0, 2**64 - 1], np.uint64), 3)
    assert not (keys[0] == keys[1]).any()


def test_distance_counts_bits():
    assert distance(0b1011, 0b0010) == 2
    assert distance(0, 2**64 - 1) == 64
