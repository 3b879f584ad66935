"""What a step of the cleaning line is: a function over a batch of documents that says what it did.

A step judges each document by itself (`Step`) or by what the whole corpus holds (`GlobalStep`:
duplicates, a share to keep). Neither knows of files, processes or resuming; `run.py` gives it
batches and adds up what it says. Each module of `steps/` has

    Config                      frozen dataclass, fields by `option`; its section is config.<module>
    make(config, workspace)     the step, made anew in every process
    fit(config, workspace)      only where something is learnt first: called once before any batch
    check(config)               only beside `fit`: the fields of the step to be, before it learns

A user's own step is a function batch -> outcomes, named in `config.steps` as `module:function`; it
may carry the attributes `needs`, `writes` and `rules`.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from jaxtrain.corpus.documents import Document

In = TypeVar("In")
Out = TypeVar("Out")


class Outcome(NamedTuple):
    """What a step made of one document."""

    document: Document  # as it goes on; where dropped, as it came, but for fields set by the step
    dropped: str | None = None  # the rule that removed it; None: kept
    because: str = ""  # of a dropped one: "duplicate of …", "mean word length 2.1 < 3"
    edits: Mapping[str, int] = {}  # of a kept one: rule -> how often it changed the text


class Step(Protocol):
    """Judges each document by itself: the outcome depends on nothing else in the batch.

    `rules` lists every name that `dropped` and `edits` can hold, so that one which never fires is
    seen. `needs` are metadata fields that it reads, `writes` those that it sets on every document
    that it keeps, with their types (str, int, float or bool; a value may be None). A step that acts
    on what must not be shown (personal data) has `private = True`: examples hide what it found.
    """

    needs: Sequence[str]
    writes: Mapping[str, type]
    rules: Sequence[str]

    def __call__(self, batch: Sequence[Document]) -> Sequence[Outcome]:
        """One outcome for each document, in order."""
        ...


class Fields(NamedTuple):
    """The metadata fields of a step that has yet to learn; `check` refuses what it cannot learn."""

    needs: Sequence[str]
    writes: Mapping[str, type]


class Executor(Protocol):
    """Where work runs: processes of this machine, or tasks on a Ray cluster."""

    num_workers: int

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
        """`function` (a top-level one, picklable) of each item, results in the order of items."""
        ...


class GlobalStep(Protocol):
    """Judges each document by what the whole corpus holds, in three passes.

    `observe` runs on every chunk of documents and returns what has to be known of it as arrays;
    they are kept on disk, one file a chunk. `decide` runs once: it reads those files (in order of
    chunks, `load_observed`), may spread work by `executor`, spills to `scratch`, and leaves its
    verdicts in files of `scratch`. `apply` runs on every chunk again, in any process. What is
    removed must not depend on the order of documents, on how they are cut into chunks, or on the
    executor.
    """

    needs: Sequence[str]
    writes: Mapping[str, type]
    rules: Sequence[str]

    def observe(self, chunk: Sequence[Document]) -> Mapping[str, np.ndarray]:
        """What `decide` needs of a chunk."""
        ...

    def decide(
        self, observed: Sequence[pathlib.Path], executor: Executor, scratch: pathlib.Path
    ) -> Mapping[str, Any]:
        """Leaves verdicts in `scratch`; returns figures for the card, as JSON values."""
        ...

    def apply(
        self, index: int, chunk: Sequence[Document], scratch: pathlib.Path
    ) -> Sequence[Outcome]:
        """The outcome of each document of chunk number `index`, the same chunk as observed."""
        ...


@dataclasses.dataclass(frozen=True)
class Workspace:
    """What `make` and `fit` get beside their config."""

    models: pathlib.Path  # a folder for what `fit` leaves and `make` loads
    executor: Executor | None = None  # in `fit` only


def load_observed(path: pathlib.Path) -> Mapping[str, np.ndarray]:
    """The arrays that `observe` returned for one chunk, read when they are asked for."""
    return np.load(path, allow_pickle=False)
