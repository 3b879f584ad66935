"""Answers as lists, and batches of them put together token by token: what tests compare with."""

import numpy as np
from hypothesis import strategies as st

from jaxtrain.types import AnswerBatch, Batch


def document(number, length, rng, kind):
    """The document of this number: its ids, mask and value (or labels) tell it from all others."""
    mask = rng.random(length) < 0.5
    mask[-1] = True
    made = {"ids": [(7 * number + place) % 300 for place in range(length)], "mask": mask}
    if kind == "steps":
        made["labels"] = (rng.random(length) < 0.5) & mask
    if kind == "ranks":
        made["value"] = number + 0.5
    return made


def make_groups(kind, lengths, seed=0, first=0):
    """Groups of documents of these lengths; those of "pairs" have margins, those of "labels" ±1."""
    rng, number, groups = np.random.default_rng(seed), first, []
    for group in lengths:
        made = []
        for place, length in enumerate(group):
            made.append(document(number, length, rng, kind))
            if kind == "pairs" and place == 0:
                made[-1]["value"] = number + 0.25
            if kind == "labels" and (len(group) == 1 or place < len(group) // 2):
                made[-1]["value"] = 1.0 if number % 3 else -1.0
            number += 1
        groups.append(made)
    return groups


def group_lengths(kind, max_len=6):
    """A strategy for lengths of the documents of groups of that kind."""
    sizes = {"pairs": [2], "ranks": [2, 3, 4], "labels": [1, 4], "steps": [1]}[kind]
    group = st.sampled_from(sizes).flatmap(
        lambda size: st.lists(st.integers(2, max_len), min_size=size, max_size=size)
    )
    return st.lists(group, min_size=1, max_size=12)


def naive_batch(traces, first_row, num_rows, seq_len, num_segments, kind, stored, references):
    """The `AnswerBatch` of rows that hold the documents of these traces.

    Args:
      stored: groups of documents by source.
      references: by source, a number per document.
    """
    integers = [np.zeros((num_rows, seq_len), np.int32) for _ in range(4)]
    inputs, targets, positions, segment_ids = integers
    weights = np.zeros((num_rows, seq_len), np.float32)
    group_ids = np.zeros((num_rows, num_segments), np.int32)
    values = np.zeros((num_rows, num_segments), np.float32)
    reference = np.zeros((num_rows, num_segments), np.float32)
    for trace in traces:
        row = trace.row - first_row
        groups = stored[trace.source]
        documents = [(g, each) for g, group in enumerate(groups) for each in group]
        column, seen = 0, []
        for q, segment in enumerate(trace.segments):
            group, made = documents[segment.document]
            assert segment.document_offset == 0
            assert segment.length == len(made["ids"])
            seen += [] if group in seen else [group]
            group_ids[row, q] = len(seen)
            values[row, q] = made.get("value", 0)
            reference[row, q] = references[trace.source][segment.document]
            for place, token in enumerate(made["ids"]):
                inputs[row, column] = token
                positions[row, column] = place
                segment_ids[row, column] = q + 1
                if kind == "steps":
                    targets[row, column] = made["labels"][place]
                    weights[row, column] = made["mask"][place]
                elif place + 1 < len(made["ids"]):
                    targets[row, column] = made["ids"][place + 1]
                    weights[row, column] = made["mask"][place + 1]
                column += 1
    tokens = Batch(inputs, targets, weights, positions, segment_ids)
    return AnswerBatch(tokens, group_ids, values, reference)


def assert_same(found, expected):
    """All arrays equal; targets where they count, and positions of tokens: others are arbitrary."""
    counts, real = expected.tokens.loss_weights > 0, expected.tokens.segment_ids > 0
    for name in ("inputs", "loss_weights", "segment_ids"):
        np.testing.assert_array_equal(getattr(found.tokens, name), getattr(expected.tokens, name))
    np.testing.assert_array_equal(found.tokens.targets[counts], expected.tokens.targets[counts])
    np.testing.assert_array_equal(found.tokens.positions[real], expected.tokens.positions[real])
    for name in ("group_ids", "values", "reference"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype
