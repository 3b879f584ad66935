"""Which documents of each chunk are duplicates, and of what: from `decide` to `apply`."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtrain.corpus.duplicates.identity import chunk_of, pack, row_of, unpack
from jaxtrain.corpus.step import load_observed


class Removals(NamedTuple):
    """Documents that are duplicates, with the kept document that each is one of."""

    places: np.ndarray  # int64
    of: np.ndarray  # int64: places of the kept ones
    similarities: np.ndarray  # float64


class Duplicate(NamedTuple):
    """What a removed document is a duplicate of."""

    of: str  # its id
    similarity: float
    in_reference: bool


def write_verdicts(
    scratch: pathlib.Path,
    removals: Removals,
    observed: Sequence[pathlib.Path],
    reference: Sequence[pathlib.Path] = (),
) -> None:
    """Writes a file for each observed chunk; chunks of the reference follow in the numbering."""
    names = _names(removals.of, [*observed, *reference])
    order = np.argsort(removals.places)
    bounds = np.searchsorted(chunk_of(removals.places[order]), np.arange(len(observed) + 1))
    for index in range(len(observed)):
        chosen = order[bounds[index] : bounds[index + 1]]
        packed, ends = pack(names[each] for each in chosen)
        np.savez(
            _file(scratch, index),
            rows=row_of(removals.places[chosen]),
            similarities=removals.similarities[chosen],
            in_reference=chunk_of(removals.of[chosen]) >= len(observed),
            names=packed,
            name_ends=ends,
        )


def read_verdicts(scratch: pathlib.Path, index: int) -> dict[int, Duplicate]:
    """The duplicates among the documents of a chunk, by row."""
    verdicts = load_observed(_file(scratch, index))
    rows = verdicts["rows"]
    names = unpack(verdicts["names"], verdicts["name_ends"], range(len(rows)))
    values = zip(
        names, verdicts["similarities"].tolist(), verdicts["in_reference"].tolist(), strict=True
    )
    return {row: Duplicate(*value) for row, value in zip(rows.tolist(), values, strict=True)}


def cluster_sizes(removals: Removals) -> dict[str, int]:
    """How many clusters there are of each size: a kept document and those removed for it."""
    _, duplicates = np.unique(removals.of, return_counts=True)
    sizes, counts = np.unique(duplicates + 1, return_counts=True)
    return {str(size): int(count) for size, count in zip(sizes, counts, strict=True)}


def _file(scratch: pathlib.Path, index: int) -> pathlib.Path:
    return scratch / f"verdicts-{index:05d}.npz"


def _names(where: np.ndarray, chunks: Sequence[pathlib.Path]) -> list[str]:
    """The ids of the documents at places, read a chunk at a time."""
    names = [""] * len(where)
    order = np.argsort(where)
    bounds = np.searchsorted(chunk_of(where[order]), np.arange(len(chunks) + 1))
    for index, path in enumerate(chunks):
        chosen = order[bounds[index] : bounds[index + 1]]
        if len(chosen):
            arrays = load_observed(path)
            found = unpack(arrays["ids"], arrays["id_ends"], row_of(where[chosen]))
            for position, name in zip(chosen.tolist(), found, strict=True):
                names[position] = name
    return names
