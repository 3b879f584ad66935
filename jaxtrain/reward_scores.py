"""Scores of a file of answers by a reward model: the ids are those of a store of answers.

Each row, a prompt with one answer, or with a chosen and a rejected one, comes out as it was with
`score`, or `score_chosen` and `score_rejected`, in the order of the input; one with the steps of an
answer (`completions`) with `scores`, of each step at its last token. A row that cannot be scored
has `score` null and says why in `error`. Scores do not depend on what they are batched with.
"""

import argparse
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxtrain import files
from jaxtrain.conversations import comparisons
from jaxtrain.conversations.comparisons import STEP_SEPARATOR
from jaxtrain.conversations.examples import Maker
from jaxtrain.conversations.forms import BadRow, Dropped
from jaxtrain.conversations.groups import in_steps
from jaxtrain.conversations.rows import Row, RowFiles
from jaxtrain.losses.reward import answer_scores
from jaxtrain.progress import show_count
from jaxtrain.serving.model import TextModel
from jaxtrain.types import AnswerBatch, Batch

_ROWS_AT_ONCE = 512  # of the input, sorted by length among themselves
_BATCH_TOKENS = 1 << 14
_LEAST_WIDTH = 64  # positions; widths are powers of two from here, so that few are compiled

_NAMES = {1: ("score",), 2: ("score_chosen", "score_rejected")}
_STEPS = "completions"
_KNOWN = ("margin", "score_chosen", "score_rejected")  # of a pair, by which training judges it


class _Asked(NamedTuple):
    """A row of the input, and the ids of its answers; or why there are none."""

    record: Mapping[str, Any]
    ids: tuple[np.ndarray, ...]  # each is scored at its end
    error: str | None = None

    def with_scores(self, scores: Sequence[float]) -> dict[str, Any]:
        """The row with the score of each of its ids."""
        if not scores:
            return {**self.record, "score": None, "error": self.error}
        if self.record.get(_STEPS) is not None:
            return {**self.record, "scores": scores}
        return {**self.record, **dict(zip(_NAMES[len(scores)], scores, strict=True))}


def score_file(
    model: TextModel,
    given: str,
    out: pathlib.Path,
    max_len: int | None = None,
    separator: str = STEP_SEPARATOR,
) -> tuple[int, int]:
    """Writes the scored rows; returns how many rows there are, and how many have no score.

    Args:
      given: a file, glob or URL of rows, as for `tokenize answers`.
      max_len: tokens of prompt and answer; None: what the model was made for.
      separator: text between the steps of an answer.

    Raises:
      ValueError: where the model is no reward model, or there are no rows.
    """
    scorer = Scorer(model)
    if out.exists():
        raise ValueError(f"{out} exists; give another name, or delete it")
    limit = max_len or model.config.context_len or model.default_max_len
    maker = Maker(model.tokenizer, model.template)
    num_rows = num_bad = 0
    with files.write_whole(out) as file, show_count("scoring", 0, "rows") as show:
        for chunk in _chunks(RowFiles([given])):
            asked = [_asked(row, maker, limit, separator) for row in chunk]
            scores = iter(scorer.scores([ids for each in asked for ids in each.ids]))
            for each in asked:
                found = each.with_scores([next(scores) for _ in each.ids])
                file.write(json.dumps(found, ensure_ascii=False).encode() + b"\n")
                num_bad += not each.ids
            num_rows += len(chunk)
            show(num_rows)
        if not num_rows:
            raise ValueError(f"{given} holds no rows")
    return num_rows, num_bad


def add_step_separator(parser: argparse.ArgumentParser) -> None:
    """--step_separator, as of `tokenize answers`."""
    parser.add_argument(
        "--step_separator",
        default=STEP_SEPARATOR,
        metavar="TEXT",
        help="between the steps of an answer, as in training (a line break)",
    )


class Scorer:
    """A reward model, compiled for the lengths that it meets."""

    def __init__(self, model: TextModel) -> None:
        """Raises a ValueError where the model is no reward model."""
        if not model.config.scalar_head:
            raise ValueError(f"{model.name} is no reward model: it has no head for a score")
        self._params, structure = model.params, model.structure

        def scores(params: Any, batch: AnswerBatch) -> jax.Array:
            return answer_scores(structure.bind(params, structure.nontrained), batch)

        self._compute = jax.jit(scores)

    def scores(self, sequences: Sequence[np.ndarray]) -> list[float]:
        """The score of each sequence of ids, that of its last token."""
        found = np.zeros(len(sequences))
        order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
        for start, stop, width in _batches([len(sequences[number]) for number in order]):
            numbers = order[start:stop]
            rows = _padded([sequences[number] for number in numbers], width)
            found[numbers] = np.asarray(self._compute(self._params, rows))[: len(numbers), 0]
        return found.tolist()


def _asked(row: Row, maker: Maker, limit: int, separator: str) -> _Asked:
    if row.record is None:
        return _Asked({}, (), f"{row.place}: {row.fault}")
    try:
        ids = _ids(row.record, maker, separator)
    except (BadRow, Dropped) as error:
        return _Asked(row.record, (), str(error))
    longest = max(map(len, ids))
    if longest > limit:
        return _Asked(row.record, (), f"too long: {longest:,} tokens, at most {limit:,} are read")
    return _Asked(row.record, ids)


def _ids(record: Mapping[str, Any], maker: Maker, separator: str) -> tuple[np.ndarray, ...]:
    """What of a row is scored, each at its end: answers, or one up to each of its steps."""
    if record.get(_STEPS) is not None:
        example, lasts = in_steps(comparisons.read_steps(record, separator), maker)
        return tuple(example.ids[: last + 1] for last in lasts)
    if "chosen" in record:  # whatever is said of the pair already, its answers are scored
        found = comparisons.read({key: record[key] for key in record if key not in _KNOWN})
    else:
        found = comparisons.read_answer(record)
    return tuple(maker.answer(found.prompt, each, found.tools).ids for each in found.answers)


def _chunks(rows: RowFiles) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _ROWS_AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _batches(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first, stop, width) of batches of rising lengths, all of one width each."""
    widths = [max(_LEAST_WIDTH, 1 << (length - 1).bit_length()) for length in lengths]
    start = 0
    while start < len(widths):
        width = widths[start]
        most = start + max(1, _BATCH_TOKENS // width)
        stop = start
        while stop < min(most, len(widths)) and widths[stop] == width:
            stop += 1
        yield start, stop, width
        start = stop


def _padded(sequences: Sequence[np.ndarray], width: int) -> AnswerBatch:
    """One answer a row; what is left of a batch is filler."""
    num_rows = max(1, _BATCH_TOKENS // width)
    inputs, segment_ids = np.zeros((2, num_rows, width), np.int32)
    for row, ids in enumerate(sequences):
        inputs[row, : len(ids)] = ids
        segment_ids[row, : len(ids)] = 1
    positions = np.where(segment_ids, np.arange(width, dtype=np.int32)[None], 0)
    nothing = np.zeros((num_rows, width), np.float32)
    tokens = Batch(inputs, np.zeros_like(inputs), nothing, positions, segment_ids)
    column = segment_ids[:, :1]
    return AnswerBatch(tokens, column, np.zeros_like(nothing[:, :1]), np.zeros_like(nothing[:, :1]))
