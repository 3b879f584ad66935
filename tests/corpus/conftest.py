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


@pytest.fixture(scope="session")
def write_fasttext() -> Callable[[pathlib.Path, Mapping[str, str]], str]:
    """Writes a fastText model that tells labels by their words; returns its path.

    Nothing is learnt, since training meets NaN at random (fastText 0.9.3): each label has an axis
    of its own, and its words lie on it.
    """
    fasttext = pytest.importorskip("fasttext")

    def write(folder: pathlib.Path, words: Mapping[str, str]) -> str:
        lines = [f"__label__{label} {text}\n" for label, text in words.items()]
        (folder / "words.txt").write_text("".join(lines), encoding="utf-8")
        model = fasttext.train_supervised(
            str(folder / "words.txt"), epoch=0, dim=len(words), minCount=1, bucket=0, verbose=0
        )
        axes = np.eye(len(words), dtype=np.float32)
        of_word = {word: axes[i] for i, text in enumerate(words.values()) for word in text.split()}
        of_label = {f"__label__{label}": axes[i] for i, label in enumerate(words)}
        model.set_matrices(
            np.array([8 * of_word.get(word, 0 * axes[0]) for word in model.words], np.float32),
            np.array([of_label[label] for label in model.labels], np.float32),
        )
        model.save_model(str(folder / "model.bin"))
        return str(folder / "model.bin")

    return write
