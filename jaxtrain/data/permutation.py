"""Pseudo-random numbers and permutations as pure functions of their index, vectorised.

Nothing is drawn from a generator, so that any row of any epoch is found without its predecessors
and no state is saved. Written here rather than taken from Grain's `index_shuffle`, which takes one
index at a time and, for small ranges, a time that grows as the range shrinks (measured: 8 µs for
46,204 rows, 340 µs for 200, 9.5 ms for 8); and so that an update cannot reorder a running job.
"""

import hashlib
import json

import numpy as np

_ROUNDS = 8  # the fewest that pass the χ² tests of tests/data/test_permutation.py at all sizes
_GOLDEN = 0x9E3779B97F4A7C15


def make_key(*parts: str | int) -> int:
    """A 64-bit key from what it depends on; different parts give unrelated keys."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def mix(values: np.ndarray | np.uint64) -> np.ndarray:
    """A bijection of uint64 that scatters its input: the finaliser of SplitMix64.

    Source: Steele, Lea and Flood 2014, Fast Splittable Pseudorandom Number Generators.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_indexes(key: np.ndarray | int, indexes: np.ndarray) -> np.ndarray:
    """Uniform uint64 values, one for each (key, index); the two broadcast."""
    keys = np.atleast_1d(np.asarray(key, np.uint64))  # scalars warn of the overflow that is meant
    return mix(mix(keys) + np.asarray(indexes, np.uint64) * np.uint64(_GOLDEN))


def permute(indexes: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """The place of each index in the pseudo-random permutation of range(size) that its key names.

    A Feistel network over pairs (high, low) with additions modulo the two radixes, close to the
    square root of `size`; a result outside the range goes through it again (cycle walking), which
    keeps it a permutation. O(1) memory per index.
    """
    high_radix = int(np.ceil(np.sqrt(size)))
    low_radix = -(-size // high_radix)
    a, b = np.uint64(high_radix), np.uint64(low_radix)
    values = np.array(indexes, np.uint64)
    keys = np.broadcast_to(np.asarray(keys, np.uint64), values.shape)
    todo = np.arange(values.size)
    while todo.size:
        high, low = np.divmod(values[todo], b)
        for turn in range(_ROUNDS):
            key = keys[todo] + np.uint64(turn * _GOLDEN % 2**64)
            if turn % 2:
                low = (low + mix(high + key) % b) % b
            else:
                high = (high + mix(low + key) % a) % a
        values[todo] = high * b + low
        todo = todo[values[todo] >= size]
    return values.astype(np.int64)
