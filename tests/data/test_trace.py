import numpy as np
import pytest

from jaxtrain.data.config import DataConfig
from jaxtrain.data.sources import Source
from jaxtrain.data.store import Store
from jaxtrain.data.trace import trace_rows


@pytest.mark.parametrize("packing", ["concat", "concat_isolated"])
def test_row_lists_its_runs_of_documents_without_empty_ones(make_store, packing):
    """Documents of 6, 0 and 3 tokens in rows of 4: the second row has two of them."""
    store = Store(make_store([[1] * 6, [], [2] * 3, [3] * 3]))
    source = Source("web", store, DataConfig(packing=packing, seq_len=4), seed=0)
    pieces = source.plan.pieces(np.array([1]))
    draws = np.array([source.num_rows + 1])
    (trace,) = trace_rows(source, np.array([70]), draws, pieces)
    assert (trace.row, trace.source, trace.epoch) == (70, "web", 1)
    second = 2 if packing == "concat_isolated" else 1
    assert [(s.segment_id, s.column, s.length) for s in trace.segments] == [
        (1, 0, 2),
        (second, 2, 2),
    ]
    assert [(s.document, s.document_offset) for s in trace.segments] == [(0, 4), (2, 0)]
    assert [segment.document_id for segment in trace.segments] == ["doc-0", "doc-2"]
    assert [segment.source for segment in trace.segments] == ["file.jsonl:0", "file.jsonl:2"]
