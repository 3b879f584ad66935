"""The contract of steps: what it offers beside its types."""

import numpy as np
import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome, Workspace, load_observed


def test_an_outcome_keeps_its_document_and_says_nothing_by_default():
    document = Document("1", "text", "source", {})
    assert Outcome(document) == (document, None, "", {})


def test_observed_arrays_are_read_back_and_never_as_objects(tmp_path):
    path = tmp_path / "chunk.npz"
    np.savez(path, keys=np.arange(3, dtype=np.uint64))
    np.testing.assert_array_equal(load_observed(path)["keys"], [0, 1, 2])
    np.savez(path, keys=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        load_observed(path)["keys"]


def test_a_workspace_has_an_executor_in_fit_only(tmp_path):
    assert Workspace(tmp_path).executor is None
