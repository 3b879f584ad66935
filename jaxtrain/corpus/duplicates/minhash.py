"""MinHash signatures and their bands (Broder 1997; Leskovec et al., Mining of Massive Datasets).

The k-th value of a signature is the least of a_k·h + b_k mod 2^64 over the shingles h of a text. A
value of two texts agrees with probability s, their Jaccard similarity. Cut into `bands` of `rows`
values, two texts share a band with probability P(s) = 1 − (1 − s^rows)^bands.

The permutations are those of `datasketch.MinHash(scheme="affine64", seed=seed)`: an odd a_k makes
each a bijection, so that none adds collisions, and shingles are mixed beforehand. Values are equal
to datasketch's for the same shingle hashes; here a block of documents goes through one permutation
at a time, which keeps to the cache and to NumPy's vector loops.
"""

import numpy as np

from jaxtrain.corpus.mixing import mix

SCHEME = "affine64"
_BLOCK_SHINGLES = 1 << 15  # two arrays of 256 KiB: within the L2 cache, long enough to pay a call


def permutations(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors and summands of `number` permutations, drawn as datasketch draws them."""
    draw = np.random.RandomState(seed)
    factors = draw.randint(0, 1 << 63, number, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return factors, draw.randint(0, 1 << 64, number, dtype=np.uint64)


def signatures(hashes: np.ndarray, counts: np.ndarray, number: int, seed: int) -> np.ndarray:
    """Signatures, uint64 of (texts, number), from the shingle hashes of texts one after the other.

    A text without shingles has the largest value throughout.
    """
    factors, summands = permutations(number, seed)
    result = np.full((len(counts), number), np.iinfo(np.uint64).max)
    ends = np.cumsum(counts)
    starts = ends - counts
    for begin in range(0, len(hashes), _BLOCK_SHINGLES):
        block = mix(hashes[begin : begin + _BLOCK_SHINGLES])
        first = int(np.searchsorted(ends, begin, "right"))
        last = int(np.searchsorted(starts, begin + len(block)))
        inside = first + np.flatnonzero(counts[first:last])
        found = _least(block, np.maximum(starts[inside] - begin, 0), factors, summands)
        result[inside] = np.minimum(result[inside], found.T)
    return result


def _least(
    hashes: np.ndarray, starts: np.ndarray, factors: np.ndarray, summands: np.ndarray
) -> np.ndarray:
    """The least permuted hash of each text that begins at `starts`, (permutations, texts)."""
    permuted = np.empty_like(hashes)
    least = np.empty((len(factors), len(starts)), np.uint64)
    for k, (factor, summand) in enumerate(zip(factors, summands, strict=True)):
        np.multiply(hashes, factor, out=permuted)
        permuted += summand
        np.minimum.reduceat(permuted, starts, out=least[k])
    return least


def band_keys(values: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """A 64-bit hash of each band of the signatures, uint64 of (texts, bands)."""
    by_band = values.reshape(len(values), bands, rows)
    keys = np.zeros((len(values), bands), np.uint64)
    for row in range(rows):
        keys = mix(keys ^ by_band[:, :, row])
    return keys


def estimated_jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """The share of values that two signatures have in common: unbiased, its variance s(1−s)/n."""
    return float(np.mean(first == second))


def probability_of_sharing_a_band(similarity: float, bands: int, rows: int) -> float:
    """P(s) = 1 − (1 − s^rows)^bands."""
    return 1 - (1 - similarity**rows) ** bands
