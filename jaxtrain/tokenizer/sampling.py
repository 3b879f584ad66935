"""A sample of documents with a given share of each source, the same in whatever order they come.

Every document has a key, a hash of its text. Of each source the documents with the smallest keys
are taken, as many as fit into its share of the bytes. So the sample depends on the texts alone:
not on their order, on the files that they lie in, or on a seed.
"""

import array
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class Text(NamedTuple):
    """A text and the source that it is counted to."""

    source: str
    text: str


@dataclasses.dataclass(frozen=True)
class Taken:
    """What a sample takes of one source."""

    num_documents: int
    num_bytes: int  # of text
    bytes_there: int  # of text in the whole source
    last_key: int  # documents of at most this key are taken; -1: none

    @property
    def is_all(self) -> bool:
        """Whether the source has no more to give."""
        return self.num_bytes == self.bytes_there


@dataclasses.dataclass(frozen=True)
class Sample:
    """Which documents are taken, by source."""

    sources: Mapping[str, Taken]

    def of(self, texts: Iterable[Text]) -> Iterator[str]:
        """Those of `texts` that are in the sample, in their order."""
        for each in texts:
            if _key(each.text) <= self.sources[each.source].last_key:
                yield each.text


def choose(
    texts: Iterable[Text], weights: Mapping[str, float] | None, sample_bytes: int | None
) -> Sample:
    """Decides what is taken, in one pass over `texts` (16 bytes of memory a document).

    Args:
      weights: source → share of the sample's bytes, in any unit; None: as the sources are.
      sample_bytes: bytes of text to take, about and at most; None: as many as there are in these
        shares. A source that has less than its share is taken whole.

    Raises:
      ValueError: where the weights do not fit the sources, or nothing would be taken.
    """
    if sample_bytes is not None and sample_bytes < 1:
        raise ValueError(f"sample_bytes={sample_bytes} must be at least 1")
    keys: dict[str, array.array] = {}
    sizes: dict[str, array.array] = {}
    for source, text in texts:
        keys.setdefault(source, array.array("Q")).append(_key(text))
        sizes.setdefault(source, array.array("Q")).append(len(text.encode()))
    there = {source: sum(each) for source, each in sizes.items()}
    shares = _shares(there, weights)
    if sample_bytes is None:
        whole = min(there[name] / shares[name] for name in there if shares[name])
    else:
        whole = Fraction(sample_bytes)
    return Sample(
        {
            source: _take(keys[source], sizes[source], int(whole * shares[source]))
            for source in sorted(there)
        }
    )


def _shares(there: Mapping[str, int], weights: Mapping[str, float] | None) -> dict[str, Fraction]:
    if not sum(there.values()):
        raise ValueError("there is no text to train on")
    if not weights:
        return {source: Fraction(size, sum(there.values())) for source, size in there.items()}
    unknown, without = sorted(weights.keys() - there.keys()), sorted(there.keys() - weights.keys())
    if unknown or without:
        raise ValueError(
            f"weights must name each source and no other: the text has {', '.join(sorted(there))}, "
            f"the weights {', '.join(sorted(weights))}"
        )
    bad = [name for name, weight in weights.items() if not 0 <= weight < float("inf")]
    if bad or not sum(weights.values()):
        raise ValueError(f"weights={dict(weights)} must be at least 0, and one above it")
    exact = {source: Fraction(weight) for source, weight in weights.items()}
    return {source: weight / sum(exact.values()) for source, weight in exact.items()}


def _take(keys: array.array, sizes: array.array, quota: int) -> Taken:
    key, size = np.array(keys, np.uint64), np.array(sizes, np.int64)
    order = np.lexsort((size, key))
    key, size = key[order], size[order]
    total = np.cumsum(size)
    # Documents of one key are one text: all of them are taken or none.
    is_last = np.append(key[1:] != key[:-1], True)
    whole = np.flatnonzero(is_last & (total <= quota))
    if not len(whole):
        return Taken(0, 0, int(total[-1]), -1)
    stop = int(whole[-1])
    return Taken(stop + 1, int(total[stop]), int(total[-1]), int(key[stop]))


def _key(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
