"""Near-duplicates over a whole corpus: candidates by shared keys, verdicts by comparison.

`NearDuplicates` is the step behind drop_near_duplicates and drop_simhash_duplicates, which differ
in their sketch alone. Chunks of a reference, an earlier corpus, take part as documents that stay.
"""

import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.duplicates.candidates import Partition, find_groups
from jaxtrain.corpus.duplicates.clusters import Comparisons
from jaxtrain.corpus.duplicates.identity import order_keys, pack
from jaxtrain.corpus.duplicates.index import check_index, observe_reference, write_index
from jaxtrain.corpus.duplicates.sketches import MinHash, SimHash
from jaxtrain.corpus.duplicates.verdicts import (
    Removals,
    cluster_sizes,
    read_verdicts,
    write_verdicts,
)
from jaxtrain.corpus.duplicates.verify import Measure, verify
from jaxtrain.corpus.step import Executor, Outcome, load_observed


class NearDuplicates:
    """Drops documents that are similar to one that is kept.

    Args:
      rule: its name in the ledger.
      reference: folders of earlier corpora, whose documents stay and count as kept.
      save_index: folder for an index of what this run keeps; None: none.

    Raises:
      ValueError: where a reference is none, or was indexed with other settings.
    """

    needs: Sequence[str] = ()
    writes: Mapping[str, type] = {}

    def __init__(
        self,
        rule: str,
        sketch: MinHash | SimHash,
        threshold: float,
        reference: Sequence[str] = (),
        save_index: str | None = None,
    ) -> None:
        self.rules: Sequence[str] = (rule,)
        self._sketch = sketch
        self._measure = Measure(sketch.shingler, threshold, sketch.max_distance)
        self._reference = [pathlib.Path(folder) for folder in reference]
        self._save_index = None if save_index is None else pathlib.Path(save_index)
        for folder in self._reference:
            check_index(folder, sketch.settings)

    def observe(self, chunk: Sequence[Document]) -> Mapping[str, np.ndarray]:
        """Keys that find candidates, texts that verify them, ids that name them."""
        sketched = self._sketch([document.text for document in chunk])
        ids, id_ends = pack(document.id for document in chunk)
        text, text_ends = pack(document.text for document in chunk)
        return {
            **sketched._asdict(),
            "order": order_keys(chunk),
            "ids": ids,
            "id_ends": id_ends,
            "text": text,
            "text_ends": text_ends,
        }

    def decide(
        self, observed: Sequence[pathlib.Path], executor: Executor, scratch: pathlib.Path
    ) -> Mapping[str, Any]:
        """Finds candidates, verifies them, and leaves what is removed and why."""
        spill = scratch / "spill"
        shutil.rmtree(spill, ignore_errors=True)
        spill.mkdir(parents=True)
        reference = [
            path
            for number, folder in enumerate(self._reference)
            for path in observe_reference(folder, self.observe, executor, spill / f"{number}")
        ]
        chunks = [*observed, *reference]
        with_shingles = [int(np.count_nonzero(_num_shingles(path))) for path in chunks]
        documents = sum(len(_num_shingles(path)) for path in observed)
        partitions = find_groups(chunks, sum(with_shingles), self._sketch.num_keys, executor, spill)
        removals, comparisons = verify(
            partitions, chunks, len(observed), self._measure, executor, spill
        )
        write_verdicts(scratch, removals, observed, reference)
        if self._save_index is not None:
            removed = [list(read_verdicts(scratch, index)) for index in range(len(observed))]
            write_index(self._save_index, self._sketch.settings, observed, removed, executor)
        shutil.rmtree(spill)
        return {
            "settings": {**self._sketch.settings, "threshold": self._measure.threshold},
            "documents": documents,
            "documents_without_shingles": documents - sum(with_shingles[: len(observed)]),
            **_figures(partitions, removals, comparisons, self._sketch.num_keys),
        }

    def apply(
        self, index: int, chunk: Sequence[Document], scratch: pathlib.Path
    ) -> Sequence[Outcome]:
        """Drops what was decided, naming the kept document and the similarity."""
        duplicates = read_verdicts(scratch, index)
        outcomes = []
        for row, document in enumerate(chunk):
            if row in duplicates:
                of, similarity, in_reference = duplicates[row]
                where = " of the reference" if in_reference else ""
                because = f"similarity {similarity:.3f} to {of}{where}"
                outcomes.append(Outcome(document, self.rules[0], because))
            else:
                outcomes.append(Outcome(document))
        return outcomes


def _num_shingles(path: pathlib.Path) -> np.ndarray:
    return load_observed(path)["num_shingles"]


def _figures(
    partitions: Sequence[Partition], removals: Removals, comparisons: Comparisons, num_keys: int
) -> dict[str, Any]:
    """What happened, for the card."""
    pairs = sum((partition.pairs for partition in partitions), np.zeros(num_keys, np.int64))
    return {
        "candidate_pairs_by_band": pairs.tolist(),
        "largest_band_group": max((partition.largest for partition in partitions), default=0),
        "comparisons_similar": comparisons.similar,
        "comparisons_not_similar": comparisons.unlike,
        "full_band_groups": comparisons.full_groups,
        "kept_documents_turned_away_by_full_groups": comparisons.turned_away,
        "duplicates": len(removals.places),
        "cluster_sizes": cluster_sizes(removals),
    }
