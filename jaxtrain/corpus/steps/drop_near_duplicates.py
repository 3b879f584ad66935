"""Drops near-duplicates: MinHash finds candidates, the Jaccard similarity of shingle sets decides.

Documents are taken in order, longest first. One is dropped where its similarity to a kept one that
it shares a band with is at least `threshold`, so that each dropped document is similar to a kept
one, whatever the order, the files or the workers. Two documents of similarity s share a band with
probability 1 − (1 − s^rows)^bands: pairs may be missed, but none is wrongly removed.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrain.corpus.duplicates.minhash import probability_of_sharing_a_band
from jaxtrain.corpus.duplicates.near import NearDuplicates
from jaxtrain.corpus.duplicates.shingles import CHARACTERS, UNITS, WORDS, Shingler
from jaxtrain.corpus.duplicates.sketches import MinHash
from jaxtrain.corpus.step import Executor, Workspace
from jaxtrain.options import option

_RULE = "near-duplicate"
_SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)  # at which the card gives P(s)


class _Preset(NamedTuple):
    unit: str
    shingle_size: int
    bands: int
    rows: int


PRESETS: Mapping[str, _Preset] = {
    "fineweb": _Preset(WORDS, 5, 14, 8),  # Penedo et al. 2024; P(0.8) = 0.92
    "characters": _Preset(CHARACTERS, 5, 16, 8),  # 128 permutations, widely used; P(0.8) = 0.95
    "nemo": _Preset(CHARACTERS, 24, 20, 13),  # NeMo Curator; P(0.8) = 0.68, P(0.9) = 0.997
    "lee": _Preset(WORDS, 5, 450, 20),  # Lee et al. 2022; P(0.8) = 0.995, 80 times the work
}


@dataclasses.dataclass(frozen=True)
class Config:
    """How near-duplicates are found and how similar they have to be."""

    preset: str = option(
        "fineweb", "published shingles, bands and rows, where not set below", choices=tuple(PRESETS)
    )
    # Lee et al. 2022 remove at an edit similarity of 0.8; FineWeb's bands have their knee at 0.72
    # and nothing is compared.
    threshold: float = option(
        0.8, "least Jaccard similarity of a duplicate, in (0, 1]; 1: equal sets of shingles"
    )
    unit: str | None = option(None, "what shingles are made of", choices=UNITS)
    shingle_size: int | None = option(None, "length of a shingle (words or characters)")
    bands: int | None = option(None, "bands of the signature: more find more")
    rows: int | None = option(None, "MinHash values in a band: more are stricter")
    seed: int = option(1, "draws the permutations; equal in all that is compared")
    reference: tuple[str, ...] = option(
        (), "earlier corpora whose documents stay: indexes, or workdirs of finished runs"
    )
    save_index: str | None = option(
        None, "folder for an index of what is kept, a reference for later runs"
    )

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"preset={self.preset!r} must be one of {', '.join(PRESETS)}")
        if not 0 < self.threshold <= 1:
            raise ValueError(
                f"threshold={self.threshold} must be above 0 and at most 1; 0.8 is usual"
            )
        if self.unit not in (None, *UNITS):
            raise ValueError(f"unit={self.unit!r} must be one of {', '.join(UNITS)}")
        for name in ("shingle_size", "bands", "rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1, or None for the preset's")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed} must lie between 0 and 2^32 − 1")
        for folder in self.reference:
            if self.save_index and pathlib.Path(folder) == pathlib.Path(self.save_index):
                raise ValueError(f"save_index={self.save_index} is a reference; take another")

    @property
    def sketch(self) -> MinHash:
        """The preset with what is set besides."""
        own = {name: getattr(self, name) for name in _Preset._fields}
        merged = PRESETS[self.preset]._replace(**{k: v for k, v in own.items() if v is not None})
        shingler = Shingler(merged.unit, merged.shingle_size)
        return MinHash(shingler, merged.bands, merged.rows, self.seed)


class DropNearDuplicates(NearDuplicates):
    """Near-duplicates by MinHash."""

    def __init__(self, config: Config) -> None:
        sketch = config.sketch
        super().__init__(_RULE, sketch, config.threshold, config.reference, config.save_index)
        self._bands, self._rows = sketch.bands, sketch.rows

    def decide(
        self, observed: Sequence[pathlib.Path], executor: Executor, scratch: pathlib.Path
    ) -> Mapping[str, Any]:
        """Adds what the setting promises to what was found."""
        promised = {
            f"{s:g}": round(probability_of_sharing_a_band(s, self._bands, self._rows), 4)
            for s in _SIMILARITIES
        }
        figures = super().decide(observed, executor, scratch)
        return {**figures, "expected_share_of_pairs_found_by_similarity": promised}


def make(config: Config, workspace: Workspace) -> DropNearDuplicates:
    """The step.

    Raises:
      ValueError: where a reference is none, or was indexed with other settings.
    """
    return DropNearDuplicates(config)
