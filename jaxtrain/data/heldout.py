"""A held-out set, read once from its first row to its last, in batches of any size.

The rows and what is trained in them do not depend on the batch size or the number of hosts: sums
over the set are the same, and only the last batch is filled up with rows that count nothing.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping

import numpy as np

from jaxtrain.data.batches import AnyBatch, BatchMaker
from jaxtrain.data.config import DataConfig
from jaxtrain.data.metadata import text_sha256
from jaxtrain.data.plan_rows import plan_rows
from jaxtrain.data.servable import check_documents
from jaxtrain.data.sources import Source, open_eval_stores
from jaxtrain.data.teacher import TeacherStore


class HeldOut:
    """One token store to measure the loss on."""

    def __init__(
        self,
        source: Source,
        config: DataConfig,
        seed: int,
        references: Mapping[str, np.ndarray] | None = None,
        teachers: Mapping[str, TeacherStore] | None = None,
    ):
        """Args:
        references, teachers: as of `Loader`, by the set's name.
        """
        self.source, self._seed = source, seed
        self._config = dataclasses.replace(config, weighting="token")  # nats per token, always
        self._maker = BatchMaker([source], self._config, seed, references, teachers)
        #: UTF-8 text in the set, for bits per byte; None where only some of its tokens are
        #: predicted, as the loss then is not that of the whole text.
        is_text = not source.store.has_mask and source.store.answers is None
        predicts_all = config.objective == "next_token" and is_text
        self.text_bytes: int | None = source.store.num_text_bytes if predicts_all else None
        if not self.text_bytes:  # documents without text
            self.text_bytes = None
        self.fingerprint = source.store.metadata.fingerprint

    def compressor_rates(self) -> dict[str, float]:
        """Bits per byte that compressors reach on this very text, where its corpus's card says so.

        {} where the store holds other text than the card's held-out file.
        """
        store = self.source.store
        card = json.loads(store.companion("card.json") or b"{}")
        described = list(card.get("outputs", {}).get("heldout", {}).get("files", {}).values())
        is_of_this = list(store.metadata.text_sha256) == [text_sha256(described)]
        return card.get("heldout_bits_per_byte", {}) if is_of_this else {}

    def num_batches(self, batch_size: int) -> int:
        """How many batches of this size hold the set."""
        return -(-self.source.num_rows // batch_size)

    def with_references(self, references: Mapping[str, np.ndarray]) -> "HeldOut":
        """The same set with these references, once they are known."""
        return HeldOut(self.source, self._config, self._seed, references)

    def with_teachers(self, teachers: Mapping[str, TeacherStore]) -> "HeldOut":
        """The same set with what these teachers said, once it is known."""
        return HeldOut(self.source, self._config, self._seed, None, teachers)

    @property
    def answers(self) -> str | None:
        """Which of `answers.KINDS` the set is of; None where documents stand alone."""
        return self._maker.answers

    def batches(self, batch_size: int, rows: slice | None = None) -> Iterator[AnyBatch]:
        """The whole set once, or these rows of each batch."""
        for block in plan_rows(self.source, batch_size, rows, maker=self._maker):
            yield block.batch


def open_heldout(
    config: DataConfig,
    seed: int,
    references: Mapping[str, np.ndarray] | None = None,
    teachers: Mapping[str, TeacherStore] | None = None,
) -> dict[str, HeldOut]:
    """The held-out sets of `config.eval_sources` by name.

    Args:
      references, teachers: as of `Loader`, by the sets' names.

    Raises:
      ValueError: where a store cannot be read or its documents cannot be served this way.
    """
    sets = {}
    for name, store in open_eval_stores(config).items():
        source = Source(name, store, config, seed)
        check_documents(source, config, f"config.data.eval_sources.{name}.path")
        sets[name] = HeldOut(source, config, seed, references, teachers)
    return sets
