"""What is known of a document so that near-duplicates can be found: keys that they share.

Two documents are candidates where one of their keys agrees. `MinHash` has a key for each band of
its signature, `SimHash` one for each choice of blocks of its fingerprint. Settings that differ give
keys that mean nothing to each other: `settings` says them all, for every index that is kept.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain.corpus.duplicates import minhash, simhash
from jaxtrain.corpus.duplicates.shingles import HASHING, Shingler


class Sketched(NamedTuple):
    """What a sketch knows of some texts."""

    keys: np.ndarray  # uint64, (texts, keys)
    fingerprints: np.ndarray  # uint64, compared where the sketch has a max_distance
    num_shingles: np.ndarray  # int64, repetitions included


@dataclasses.dataclass(frozen=True)
class MinHash:
    """Keys are the bands of a MinHash signature."""

    shingler: Shingler
    bands: int
    rows: int
    seed: int
    max_distance: None = None

    @property
    def num_keys(self) -> int:
        """Keys of a text."""
        return self.bands

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that keys depend on."""
        return {
            "scheme": minhash.SCHEME,
            "hashing": HASHING,
            **dataclasses.asdict(self.shingler),
            "bands": self.bands,
            "rows": self.rows,
            "seed": self.seed,
        }

    def __call__(self, texts: Sequence[str]) -> Sketched:
        """The keys of texts."""
        parts = []
        for hashes, counts in self.shingler(texts):
            values = minhash.signatures(hashes, counts, self.bands * self.rows, self.seed)
            keys = minhash.band_keys(values, self.bands, self.rows)
            parts.append(Sketched(keys, np.zeros(len(counts), np.uint64), counts))
        return _joined(parts, self.num_keys)


@dataclasses.dataclass(frozen=True)
class SimHash:
    """Keys find all fingerprints within `max_distance` bits."""

    shingler: Shingler
    max_distance: int

    @property
    def num_keys(self) -> int:
        """Keys of a text: choices of three blocks."""
        blocks = self.max_distance + 3
        return blocks * (blocks - 1) * (blocks - 2) // 6

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that keys depend on."""
        return {
            "scheme": simhash.SCHEME,
            "hashing": HASHING,
            **dataclasses.asdict(self.shingler),
            "max_distance": self.max_distance,
        }

    def __call__(self, texts: Sequence[str]) -> Sketched:
        """The keys and fingerprints of texts."""
        parts = []
        for hashes, counts in self.shingler(texts):
            fingerprints = simhash.fingerprints(hashes, counts)
            keys = simhash.block_keys(fingerprints, self.max_distance)
            parts.append(Sketched(keys, fingerprints, counts))
        return _joined(parts, self.num_keys)


def _joined(parts: Sequence[Sketched], num_keys: int) -> Sketched:
    empty = Sketched(
        np.zeros((0, num_keys), np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.int64)
    )
    return Sketched(*(np.concatenate(each) for each in zip(empty, *parts, strict=True)))
