"""From planned pieces of a run's sources to batches, with what is served beside their tokens.

Plain documents and conversations are a `Batch`, or a `TeacherBatch` where a teacher's output is
given; answers are an `AnswerBatch`. A run serves one of them.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxtrain.data.assemble import assemble, per_segment
from jaxtrain.data.config import DataConfig
from jaxtrain.data.masking import mask_tokens
from jaxtrain.data.packing import Pieces
from jaxtrain.data.permutation import make_key
from jaxtrain.data.sources import Source, mask_id
from jaxtrain.data.teacher import LOGPROB_DTYPE, TeacherStore, rows_of
from jaxtrain.types import AnswerBatch, Batch, TeacherBatch

AnyBatch = Batch | AnswerBatch | TeacherBatch


class BatchMaker:
    """Makes batches of rows of these sources."""

    def __init__(
        self,
        sources: Sequence[Source],
        config: DataConfig,
        seed: int,
        references: Mapping[str, np.ndarray] | None = None,
        teachers: Mapping[str, TeacherStore] | None = None,
    ):
        """Args:
          references: per source, the log-probability of each document's answer under a reference.
          teachers: per source, what a teacher said of its tokens.

        Raises:
          ValueError: where one of them is missing or does not fit its source.
        """
        self._config, self._seed = config, seed
        used = [source for source in sources if source.num_rows]
        #: Which of `answers.KINDS` the documents are; None where each stands alone.
        self.answers = used[0].store.answers if used else None
        self._num_segments = 0
        if self.answers is not None:
            self._num_segments = max(source.ledger.max_segments for source in used)
        self._references = None if references is None else _checked(references, used)
        self._teachers = teachers
        if teachers is not None:
            _check_teachers(teachers, used, config)

    def make(self, filled: Sequence[tuple[Source, Pieces]], rows: np.ndarray) -> AnyBatch:
        """Global rows `rows` as a batch; `Pieces.rows` says where in it a piece lies."""
        config = self._config
        batch = assemble(
            [(source.store, pieces) for source, pieces in filled], len(rows), config.seq_len
        )
        if self.answers is not None:
            return self._with_answers(batch, filled)
        if config.objective == "masked_lm" and filled:
            store = filled[0][0].store
            batch = mask_tokens(
                batch,
                rows,
                key=make_key("mask", self._seed),
                mask_frac=config.mask_frac,
                mask_id=mask_id(store, "config.data.sources.path"),
                vocab_size=store.tokenization.vocab_size,
            )
        if config.weighting == "document":
            batch = per_segment(batch)
        return batch if self._teachers is None else self._with_teacher(batch, filled)

    def _with_answers(self, batch: Batch, filled: Sequence[tuple[Source, Pieces]]) -> AnswerBatch:
        shape = (len(batch.inputs), self._num_segments)
        group_ids = np.zeros(shape, np.int32)
        values, reference = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for source, pieces in filled:
            documents = source.documents(pieces)
            place = (pieces.rows, pieces.numbers)
            group_ids[place] = _numbers_of_groups(source, pieces, documents)
            values[place] = source.store.values[documents]
            if self._references is not None:
                reference[place] = self._references[source.name][documents]
        return AnswerBatch(batch, group_ids, values, reference)

    def _with_teacher(self, batch: Batch, filled: Sequence[tuple[Source, Pieces]]) -> TeacherBatch:
        assert self._teachers is not None
        k = next(iter(self._teachers.values())).k
        num_rows, seq_len = batch.inputs.shape
        ids = np.zeros((num_rows * seq_len, k), np.int32)
        # As stored: float32 would double the work here and what goes to the device.
        logprobs = np.full((num_rows * seq_len, k), -np.inf, LOGPROB_DTYPE)
        for source, pieces in filled:
            offsets = pieces.rows * seq_len + pieces.columns
            self._teachers[source.name].read(pieces, offsets, ids, logprobs)
        shape = (num_rows, seq_len, k)
        return TeacherBatch(batch, ids.reshape(shape), logprobs.reshape(shape))


def _numbers_of_groups(source: Source, pieces: Pieces, documents: np.ndarray) -> np.ndarray:
    """The number of each piece's group within its row, from 1."""
    groups = np.searchsorted(source.store.group_ends, documents, side="right")
    is_new = (np.diff(groups, prepend=-1) != 0) | (pieces.numbers == 0)
    counts = np.cumsum(is_new)
    return counts - counts[np.searchsorted(pieces.rows, pieces.rows)] + 1


def _checked(
    references: Mapping[str, np.ndarray], sources: Sequence[Source]
) -> dict[str, np.ndarray]:
    checked = {}
    for source in sources:
        if source.store.answers is None:
            raise ValueError(
                f"references are given, but {source.name} ({source.store.path}) is no store of "
                "answers."
            )
        if source.name not in references:
            raise ValueError(f"references has none of {source.name}; give every source its own.")
        values = np.asarray(references[source.name], np.float32)
        if values.shape != (source.store.num_documents,) or not np.isfinite(values).all():
            raise ValueError(
                f"references[{source.name!r}] must be {source.store.num_documents:,} finite "
                f"log-probabilities, one per document, not of shape {values.shape}"
                + ("." if np.isfinite(values).all() else " with NaN or infinity.")
            )
        checked[source.name] = values
    return checked


def _check_teachers(
    teachers: Mapping[str, TeacherStore], sources: Sequence[Source], config: DataConfig
) -> None:
    if config.objective != "next_token":
        raise ValueError(
            f"a teacher says what comes next, but config.data.objective={config.objective!r}; set "
            "next_token."
        )
    for source in sources:
        if source.store.answers is not None:
            raise ValueError(
                f"a teacher's output is given, but {source.name} ({source.store.path}) is a store "
                "of answers; give one of text or conversations."
            )
        if source.name not in teachers:
            raise ValueError(f"teachers has none of {source.name}; give every source its own.")
        teachers[source.name].check_serves(
            source.store, rows_of(source), f"teachers[{source.name!r}]"
        )
    ks = {name: teacher.k for name, teacher in teachers.items()}
    if len(set(ks.values())) > 1:
        raise ValueError(f"the teachers keep different numbers of ids per token, {ks}; use one.")
