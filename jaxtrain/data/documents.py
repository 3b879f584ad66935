"""One document on its way into a token store: its arrays, checked, and those of many together."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtrain.data.answers import STEPS, fault_of_group
from jaxtrain.data.metadata import StoreError, Tokenization


class Document(NamedTuple):
    """Its ids, and what is known of them; arrays have an entry per id."""

    ids: np.ndarray
    document_id: str
    source: str
    num_text_bytes: int
    mask: np.ndarray | None
    value: float | None
    joins: bool  # the group of the document before
    labels: np.ndarray | None
    weights: np.ndarray | None

    @property
    def name(self) -> bytes:
        return json.dumps([self.document_id, self.source]).encode()

    def stored(self, dtype: np.dtype) -> "Document":
        """A copy in the types that are stored: smaller, and the caller's arrays may change."""
        return self._replace(
            ids=self.ids.astype(dtype),
            mask=None if self.mask is None else self.mask.astype(np.uint8),
            labels=None if self.labels is None else self.labels.astype(np.uint8),
            weights=None if self.weights is None else self.weights.astype(np.float32),
        )

    @property
    def loss_weights(self) -> np.ndarray:
        """How much each token counts, by whatever says it."""
        if self.weights is not None:
            return self.weights
        return np.ones(len(self.ids), np.uint8) if self.mask is None else self.mask

    def check(self, tokenization: Tokenization) -> None:
        """Raises StoreError, naming it, where a store of this tokenization cannot have it."""
        if fault := self._fault_of_ids(tokenization.vocab_size) or self._fault_of_arrays():
            raise StoreError(f"{self.source}: document {self.document_id!r} has {fault}")
        if fault := self._fault_of_answer(tokenization.answers):
            raise StoreError(f"{self.source}: document {self.document_id!r} {fault}")

    def _fault_of_ids(self, vocab_size: int) -> str | None:
        ids = self.ids
        if ids.size and ids.dtype.kind not in "iu":
            return f"{ids.dtype} ids, not integers"
        if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
            bad = ids[(ids < 0) | (ids >= vocab_size)][0]
            return (
                f"token id {bad}, but the vocabulary has {vocab_size}; use the tokenizer that the "
                "store is made with"
            )
        return None

    def _fault_of_arrays(self) -> str | None:
        arrays = (("a mask", self.mask), ("labels", self.labels), ("weights", self.weights))
        for what, array in arrays:
            if array is not None and array.shape != self.ids.shape:
                return f"{len(self.ids)} ids and {what} of {len(array)}; they must be of one length"
        if self.weights is not None:
            if self.mask is not None:
                return "a mask and weights; weights say it all"
            bad = self.weights[~(np.isfinite(self.weights) & (self.weights >= 0))]
            if bad.size:
                return f"a weight of {bad[0]}; they are finite and at least 0"
        if self.labels is not None and not np.isin(self.labels, (0, 1)).all():
            return "labels other than 0 and 1"
        if self.value is not None and not np.isfinite(self.value):
            return f"the value {self.value}, which is not finite"
        return None

    def _fault_of_answer(self, kind: str | None) -> str | None:
        if kind is None:
            if self.joins or self.value is not None or self.labels is not None:
                return (
                    "is in a group, has a value or labels, but the store is of no answers; set "
                    "Tokenization.settings['answers']"
                )
            return None
        if self.weights is not None:
            return f"has weights, and answers of kind {kind!r} are judged whole; give a mask"
        if kind == STEPS:
            if self.mask is None or self.labels is None:
                return "is judged by steps, so that it needs a mask of their ends and labels"
            return None if self.mask.any() else "has no step; leave it out"
        if self.labels is not None:
            return f"has labels, which answers of kind {kind!r} do not"
        if not np.any(self.loss_weights[1:]):
            return "has no answer: no token of it is trained; leave its group out"
        return None


def check_group(kind: str, group: Sequence[Document]) -> None:
    """Raises StoreError, naming its first document, where these are no group of that kind."""
    if fault := fault_of_group(kind, [document.value or 0.0 for document in group]):
        raise StoreError(f"{group[0].source}: document {group[0].document_id!r}: {fault}")


def num_masked_targets(documents: Sequence[Document], kind: str | None) -> int | None:
    """How many tokens of a part are trained; None where all that can be are.

    The first token of a document follows none. The end of a step is judged, not predicted.
    """
    if all(each.mask is None and each.weights is None for each in documents):
        return None
    first = 0 if kind == STEPS else 1
    return sum(int(np.count_nonzero(each.loss_weights[first:])) for each in documents)


def file_contents(documents: Sequence[Document]) -> dict[str, bytes]:
    """The files of a part that holds these documents, as stored, by kind; see `store.py`."""
    lengths = [len(each.ids) for each in documents]
    names = [each.name for each in documents]
    contents = {
        "tokens": np.concatenate([each.ids for each in documents]).tobytes(),
        "ends": np.cumsum(lengths, dtype="<u8").tobytes(),
        "names": np.cumsum([len(name) for name in names], dtype="<u8").tobytes() + b"".join(names),
    }
    has_weights = any(each.weights is not None for each in documents)
    if has_weights or any(each.mask is not None for each in documents):
        kind, dtype = ("weights", "<f4") if has_weights else ("mask", "u1")
        loss_weights = np.concatenate([each.loss_weights for each in documents])
        contents[kind] = loss_weights.astype(dtype).tobytes()
    if any(each.joins for each in documents):
        last = [not after.joins for after in documents[1:]] + [True]
        contents["groups"] = (np.flatnonzero(last) + 1).astype("<u8").tobytes()
    if any(each.value for each in documents):
        values = [each.value or 0.0 for each in documents]
        contents["values"] = np.array(values, "<f4").tobytes()
    if any(each.labels is not None for each in documents):
        labels = [each.labels for each in documents if each.labels is not None]
        contents["labels"] = np.concatenate(labels).tobytes()
    return contents
