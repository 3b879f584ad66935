"""Takes chunks of documents through a step that has to see the whole corpus."""

import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.executors import LocalExecutor
from jaxtrain.corpus.step import Executor, GlobalStep, Outcome


class Judged(NamedTuple):
    outcomes: list[Outcome]  # of all chunks, in order
    figures: Mapping[str, Any]

    @property
    def kept(self) -> list[Document]:
        return [each.document for each in self.outcomes if each.dropped is None]

    @property
    def removed(self) -> dict[str, str]:
        """Ids with the reason for each."""
        return {each.document.id: each.because for each in self.outcomes if each.dropped}


@pytest.fixture(scope="session")
def judge() -> Callable[..., Judged]:
    """Runs a global step over chunks as a run does, in a folder of its own."""

    def run(
        step: GlobalStep, *chunks: Sequence[Document], executor: Executor | None = None
    ) -> Judged:
        with tempfile.TemporaryDirectory() as directory:
            observed = []
            for number, chunk in enumerate(chunks):
                observed.append(pathlib.Path(directory, f"{number:05d}.npz"))
                np.savez(observed[-1], **step.observe(chunk))
            scratch = pathlib.Path(directory, "scratch")
            scratch.mkdir()
            figures = step.decide(observed, executor or LocalExecutor(1), scratch)
            outcomes = [
                outcome
                for number, chunk in enumerate(chunks)
                for outcome in step.apply(number, chunk, scratch)
            ]
        return Judged(outcomes, figures)

    return run
