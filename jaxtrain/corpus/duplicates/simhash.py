"""SimHash fingerprints (Charikar 2002) and the keys that find those that differ in a few bits.

A bit of a fingerprint is the majority of that bit over all shingles, repetitions counted. For a
distance d the 64 bits are cut into d + 3 blocks; two fingerprints within d agree in at least three
of them, so that the keys of all choices of three blocks find every such pair (Manku et al. 2007).
"""

import itertools

import numpy as np

from jaxtrain.corpus.mixing import mix

SCHEME = "simhash64"


def fingerprints(hashes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A fingerprint for each text, uint64; 0 for a text without shingles."""
    result = np.zeros(len(counts), np.uint64)
    filled = np.flatnonzero(counts)
    if not len(filled):
        return result
    starts = np.cumsum(counts[filled]) - counts[filled]
    bits = np.unpackbits(hashes.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1)
    votes = np.add.reduceat(bits, starts, axis=0, dtype=np.int64)
    majority = 2 * votes > counts[filled, None]
    result[filled] = np.packbits(majority, axis=1).view("<u8")[:, 0]
    return result


def block_keys(values: np.ndarray, max_distance: int) -> np.ndarray:
    """A key for each choice of three blocks, uint64 of (texts, choices)."""
    edges = np.linspace(0, 64, max_distance + 4).astype(int)
    blocks = [sum(1 << bit for bit in range(a, b)) for a, b in itertools.pairwise(edges)]
    masks = [sum(choice) for choice in itertools.combinations(blocks, 3)]
    return mix(values[:, None] & np.array(masks, np.uint64)[None, :])


def distance(first: int, second: int) -> int:
    """In how many bits two fingerprints differ."""
    return (first ^ second).bit_count()
