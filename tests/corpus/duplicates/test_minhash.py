import math

import numpy as np
import pytest

from jaxtrain.corpus.duplicates.minhash import (
    band_keys,
    estimated_jaccard,
    probability_of_sharing_a_band,
    signatures,
)
from jaxtrain.corpus.duplicates.shingles import WORDS, Shingler, jaccard

EMPTY = 2**64 - 1


def _random(number, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, number, dtype=np.uint64)


def test_signatures_are_those_of_datasketch():
    datasketch = pytest.importorskip("datasketch")
    hashes, counts = _random(1_000), np.array([3, 0, 996, 1])
    ours = signatures(hashes, counts, 128, seed=7)
    for row, part in zip(ours, np.split(hashes, np.cumsum(counts)[:-1]), strict=True):
        theirs = datasketch.MinHash(128, seed=7, scheme="affine64", hashfunc=lambda value: value)
        theirs.update_batch(part.tolist())
        assert row.tolist() == theirs.hashvalues.tolist()


def test_signatures_do_not_depend_on_blocks():
    hashes, counts = _random(200_000), np.array([5, 0, 40_000, 80_000, 7, 79_988, 0])
    whole = signatures(hashes, counts, 4, seed=1)
    for row, part in zip(whole, np.split(hashes, np.cumsum(counts)[:-1]), strict=True):
        alone = signatures(part, np.array([len(part)]), 4, seed=1)
        assert row.tolist() == alone[0].tolist()


def test_signature_of_no_shingles_is_the_largest():
    assert (signatures(_random(0), np.array([0, 0]), 3, seed=1) == EMPTY).all()
    assert signatures(_random(0), np.zeros(0, np.int64), 3, seed=1).shape == (0, 3)


@pytest.mark.parametrize(("size", "similarity"), [(1, 0.5), (5, 99_996 / 199_996)])
def test_estimates_of_large_documents_are_unbiased(size, similarity):
    """CLN-05: 150,000 words each, 100,000 of them shared; 256 permutations, 20 seeds."""
    texts = [" ".join(f"w{i:06d}" for i in range(start, start + 150_000)) for start in (0, 50_000)]
    first, second = Shingler(WORDS, size).sets(texts)
    assert jaccard(first, second) == pytest.approx(similarity, abs=1e-5)
    hashes, counts = np.concatenate([first, second]), np.array([len(first), len(second)])
    estimates = [estimated_jaccard(*signatures(hashes, counts, 256, seed)) for seed in range(20)]
    spread = math.sqrt(similarity * (1 - similarity) / 256)
    assert abs(np.mean(estimates) - similarity) < 3 * spread / math.sqrt(20)
    assert 0.6 * spread < np.std(estimates, ddof=1) < 1.5 * spread  # chi² of 19: about 4 sigma


def test_band_keys_agree_where_all_rows_of_a_band_do():
    values = _random(12).reshape(1, 12).repeat(3, axis=0)
    values[1, 4] += 1  # in the second band of four rows
    values[2] = values[2, [1, 0, *range(2, 12)]]  # order within a band counts
    keys = band_keys(values, bands=3, rows=4)
    assert (keys[0] == keys[1]).tolist() == [True, False, True]
    assert (keys[0] == keys[2]).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("bands", "rows", "expected"),
    [(14, 8, (0.565, 0.924, 1.0)), (20, 13, (0.177, 0.677, 0.997)), (450, 20, (0.302, 0.995, 1.0))],
)
def test_probability_is_that_of_published_settings(bands, rows, expected):
    found = [probability_of_sharing_a_band(s, bands, rows) for s in (0.7, 0.8, 0.9)]
    assert found == pytest.approx(expected, abs=0.0006)


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.8, 0.9])
def test_pairs_share_a_band_as_often_as_predicted(similarity):
    pairs, union, bands, rows = 2_000, 100, 14, 8
    shared = int(similarity * union)
    hashes = _random(pairs * union, seed=5).reshape(pairs, union)
    alone = (union - shared) // 2
    first = hashes[:, : shared + alone]
    second = np.concatenate([hashes[:, :shared], hashes[:, shared + alone :]], axis=1)
    keys = [
        band_keys(
            signatures(each.ravel(), np.full(pairs, each.shape[1]), bands * rows, 1), bands, rows
        )
        for each in (first, second)
    ]
    found = np.count_nonzero((keys[0] == keys[1]).any(axis=1))
    p = probability_of_sharing_a_band(similarity, bands, rows)
    assert abs(found - pairs * p) <= 4 * math.sqrt(pairs * p * (1 - p)) + 1
