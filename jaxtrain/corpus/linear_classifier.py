r"""A linear classifier of texts on hashed n-grams of words: fastText's accuracy, not its library.

A text is the set of its n-grams of 1 … `max_order` words, each hashed to one of `num_buckets`; the
value of a bucket is sqrt(count / number of n-grams), so that every text has length 1 and common
words do not drown the others (the Hellinger map). Words are those of `duplicates/shingles.py`:
lower case, a character each in scripts without spaces. The score is the probability of the positive
class, were both equally frequent:

    sigmoid(w·x + b),   w, b = argmin  mean over classes of mean log-loss + l2/2 |w|²

The minimum is unique and the texts are taken in order of their hashes: the model does not depend on
the order in which they are read.
"""

import hashlib
import heapq
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.sparse

from jaxtrain import files
from jaxtrain.corpus.duplicates import shingles

_FORMAT = f"linear-1 {shingles.HASHING}"
# DCLM's 499 human labels, cross-validated: 1e-2, 1e-3, 1e-4 give an AUC of 0.855, 0.870, 0.873.
_L2 = 1e-4
_MAX_ITERATIONS = 200
_MIN_DOCUMENTS_OF_BUCKET = 2  # what one text alone has says nothing about others
_HELDOUT_FRAC = 0.1


class Sample(NamedTuple):
    """The texts of one class, in order of their hashes, and what is left out."""

    texts: list[str]
    hashes: list[bytes]
    num_read: int

    def describe(self) -> dict[str, Any]:
        """For the model's file: what it was trained from."""
        digest = hashlib.sha256(b"".join(self.hashes)).hexdigest()
        return {"read": self.num_read, "used": len(self.texts), "sha256": digest}


def sample(texts: Iterable[str], max_texts: int) -> Sample:
    """At most `max_texts` texts, those of the smallest hashes: the same in whatever order."""
    chosen: list[tuple[int, str]] = []  # a heap, largest hash first
    num_read = 0
    for text in texts:
        num_read += 1
        entry = -int.from_bytes(hashlib.sha256(text.encode()).digest()), text
        if len(chosen) < max_texts:
            heapq.heappush(chosen, entry)
        else:
            heapq.heappushpop(chosen, entry)
    chosen.sort(reverse=True)
    hashes = [(-negated).to_bytes(32) for negated, _ in chosen]
    return Sample([text for _, text in chosen], hashes, num_read)


class LinearClassifier:
    """Scores texts; made by `train` or `load`."""

    def __init__(self, weights: np.ndarray, bias: float, facts: dict[str, Any]):
        self._weights, self._bias = weights, bias
        self.facts = facts  # JSON values: settings, what it was trained from, held-out AUC

    def score(self, texts: Sequence[str]) -> np.ndarray:
        """Probability of the positive class (float64), each by the text alone."""
        logits = [
            features @ self._weights + self._bias
            for features in _features(texts, self.facts["max_order"], len(self._weights))
        ]
        return 1 / (1 + np.exp(-np.concatenate(logits))) if logits else np.zeros(0)

    def save(self, path: pathlib.Path) -> None:
        """Writes the file whole or not at all; the same model gives the same bytes."""
        buckets = np.flatnonzero(self._weights)
        with files.write_whole(path) as file:
            np.savez_compressed(
                file,
                format=_FORMAT,
                facts=json.dumps(self.facts, sort_keys=True),
                num_buckets=len(self._weights),
                buckets=buckets.astype(np.uint32),
                weights=self._weights[buckets].astype(np.float32),
                bias=self._bias,
            )

    @classmethod
    def load(cls, path: pathlib.Path) -> "LinearClassifier":
        """Reads what `save` wrote.

        Raises:
          ValueError: the file is of another kind, or its n-grams were hashed otherwise.
        """
        with np.load(path) as file:
            made = str(file["format"]) if "format" in file else "another program"
            if made != _FORMAT:
                raise ValueError(f"{path} was made by {made}, not {_FORMAT}; train it anew")
            weights = np.zeros(int(file["num_buckets"]))
            weights[file["buckets"]] = file["weights"]
            return cls(weights, float(file["bias"]), json.loads(str(file["facts"])))


def train(
    positives: Sample, negatives: Sample, *, max_order: int = 2, num_buckets: int = 1 << 21
) -> LinearClassifier:
    """Trains on nine tenths of each class and measures the area under the ROC curve on the rest.

    Raises:
      ValueError: a class is empty, or `num_buckets` is no power of two.
    """
    if num_buckets < 2 or num_buckets & (num_buckets - 1):
        raise ValueError(f"num_buckets={num_buckets} must be a power of two")
    for name, chosen in (("positives", positives), ("negatives", negatives)):
        if not chosen.texts:
            raise ValueError(f"{name} hold no document; a classifier needs both classes")
    texts = positives.texts + negatives.texts
    is_positive = np.arange(len(texts)) < len(positives.texts)
    held_out = np.array([_is_held_out(each) for each in positives.hashes + negatives.hashes])
    for chosen in (is_positive, ~is_positive):
        if held_out[chosen].all():
            held_out[chosen] = False  # too few to hold any out
    parts = list(_features(texts, max_order, num_buckets))
    matrix: Any = scipy.sparse.csr_matrix(scipy.sparse.vstack(parts))
    weights, bias = _fit(matrix[~held_out], is_positive[~held_out])
    auc = area_under_curve((matrix[held_out] @ weights) + bias, is_positive[held_out])
    facts = {
        "max_order": max_order,
        "positives": positives.describe(),
        "negatives": negatives.describe(),
        "heldout_auc": auc if auc is None else round(auc, 4),
    }
    return LinearClassifier(weights.astype(np.float32).astype(np.float64), bias, facts)


def area_under_curve(scores: np.ndarray, is_positive: np.ndarray) -> float | None:
    """Chance that a positive scores above a negative, ties half; None without one of each."""
    num_positive = int(is_positive.sum())
    num_negative = len(scores) - num_positive
    if not num_positive or not num_negative:
        return None
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]
    least = num_positive * (num_positive + 1) / 2
    return float((ranks[is_positive].sum() - least) / (num_positive * num_negative))


def _is_held_out(digest: bytes) -> bool:
    return int.from_bytes(digest[-4:]) < _HELDOUT_FRAC * 2**32


def _features(texts: Sequence[str], max_order: int, num_buckets: int) -> Iterator[Any]:
    """Texts as rows of length 1 of sparse matrices, some texts at a time."""
    cutters = [shingles.Shingler(shingles.WORDS, order)(texts) for order in range(1, max_order + 1)]
    for orders in zip(*cutters, strict=True):
        num_texts = len(orders[0].counts)
        keys = np.concatenate(
            [
                np.repeat(np.arange(num_texts, dtype=np.uint64) * np.uint64(num_buckets), counts)
                + (hashes & np.uint64(num_buckets - 1))
                for hashes, counts in orders
            ]
        )
        keys, counts = np.unique(keys, return_counts=True)
        rows = (keys // np.uint64(num_buckets)).astype(np.int64)
        totals = np.bincount(rows, counts, num_texts)
        ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_texts))])
        columns = (keys % np.uint64(num_buckets)).astype(np.int32)
        values = np.sqrt(counts / totals[rows])
        yield scipy.sparse.csr_matrix((values, columns, ends), (num_texts, num_buckets))


def _fit(matrix: Any, is_positive: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights of all buckets and the bias."""
    seen_in = np.bincount(matrix.indices, minlength=matrix.shape[1])
    used = np.flatnonzero(seen_in >= _MIN_DOCUMENTS_OF_BUCKET)
    inputs = matrix[:, used]
    transposed = inputs.T.tocsr()
    signs = np.where(is_positive, 1.0, -1.0)
    shares = np.where(is_positive, 0.5 / is_positive.sum(), 0.5 / (~is_positive).sum())

    def loss_and_gradient(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weights, bias = parameters[:-1], parameters[-1]
        margins = signs * (inputs @ weights + bias)
        slopes = -shares * signs / (1 + np.exp(np.minimum(margins, 700)))
        loss = shares @ np.logaddexp(0, -margins) + _L2 / 2 * (weights @ weights)
        return loss, np.append(transposed @ slopes + _L2 * weights, slopes.sum())

    found = scipy.optimize.minimize(
        loss_and_gradient,
        np.zeros(len(used) + 1),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _MAX_ITERATIONS, "ftol": 1e-12, "gtol": 1e-6},
    )
    weights = np.zeros(matrix.shape[1])
    weights[used] = found.x[:-1]
    return weights, float(found.x[-1])
