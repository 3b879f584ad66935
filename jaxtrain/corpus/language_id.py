"""Tells the language of texts: py3langid's model run over many texts at once, or a fastText model.

py3langid (Lui and Baldwin 2012's method) walks a finite automaton over the bytes of a text, byte by
byte in Python, at 2 to 3 MB/s. Here the texts of a batch take each step together in NumPy; model,
features and scores are the library's, and a text's outcome does not depend on the others.
"""

import functools
import math
import pathlib
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from py3langid import langid

_AT_ONCE = 512  # texts that walk together: bounds memory


class Guess(NamedTuple):
    """The likeliest language of a text."""

    language: str
    score: float  # probability, 0 to 1


UNKNOWN = Guess("und", 0.0)  # ISO 639-2 for "undetermined"


class Identifier(Protocol):
    """A model that knows some languages."""

    @property
    def labels(self) -> Sequence[str]:
        """Every language that it can guess."""
        ...

    def guess(self, texts: Sequence[str]) -> list[Guess]:
        """The likeliest language of each text, none of which holds a newline."""
        ...


class Langid:
    """py3langid's bundled model: 140 languages, ISO 639-1 codes (639-3 where there is none)."""

    def __init__(self):
        model = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
        self.labels = model.labels
        self._next_state = np.asarray(model.tk_nextmove)
        self._first_of_row = np.asarray(model.tk_row, np.int64) << 8
        self._feature_of = np.asarray(model.tk_output, np.int32)
        # In float16 as it comes, every product converts it anew: 2.5 times slower.
        self._log_chances = np.asarray(model.nb_ptc, np.float32)
        self._log_priors = np.asarray(model.nb_pc, np.float32)
        # A language may have several columns, one a script; their probabilities add up.
        self._columns = np.array([self.labels.index(name) for name in model.nb_classes])

    def guess(self, texts: Sequence[str]) -> list[Guess]:
        """The likeliest language of each text; `und` where nothing in it tells."""
        guesses = []
        for start in range(0, len(texts), _AT_ONCE):
            encoded = [_encode(text) for text in texts[start : start + _AT_ONCE]]
            features = self._features(encoded)
            guesses += map(self._likeliest, features, map(len, encoded))
        return guesses

    def _features(self, encoded: Sequence[bytes]) -> list[np.ndarray]:
        """The features that each text's walk meets, in any order."""
        order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
        lengths = np.array([len(encoded[i]) for i in order])
        longest = int(lengths[0]) if order else 0
        letters = np.zeros((longest, len(order)), np.uint8)
        for column, i in enumerate(order):
            letters[: lengths[column], column] = np.frombuffer(encoded[i], np.uint8)
        # The longest come first, so that those still walking are always the first few.
        walking = np.searchsorted(-lengths, -np.arange(longest), side="left")
        states = np.zeros(len(order), np.int64)
        met = np.full((longest, len(order)), -1, np.int32)
        for position, count in enumerate(walking):
            row = self._first_of_row[states[:count]]
            states[:count] = self._next_state[row + letters[position, :count]]
            met[position, :count] = self._feature_of[states[:count]]
        features: list[np.ndarray] = [np.empty(0)] * len(order)
        for column, i in enumerate(order):
            walk = met[:, column]
            features[i] = walk[walk >= 0]
        return features

    def _likeliest(self, features: np.ndarray, num_bytes: int) -> Guess:
        if not features.size:
            return UNKNOWN
        met, counts = np.unique(features, return_counts=True)
        scores = np.log1p(counts.astype(np.float32)) @ self._log_chances[met] + self._log_priors
        # The library's own calibration, by the square root of the length.
        scores = scores.astype(np.float64) / math.sqrt(num_bytes)
        chances = np.exp(scores - scores.max())
        of_label = np.bincount(self._columns, chances / chances.sum())
        best = int(of_label.argmax())
        return Guess(self.labels[best], float(of_label[best]))


@functools.cache
def bundled_model() -> Langid:
    """py3langid's model, loaded once in a process: half a second."""
    return Langid()


class FastText:
    """A fastText model file with labels such as `__label__en`."""

    def __init__(self, path: str):
        try:
            import fasttext  # an extra: imported where a model is named
        except ImportError as error:
            raise ValueError(
                f"model={path} needs the package fasttext, which is not installed; "
                "install it, or leave the model out to use py3langid"
            ) from error
        if not pathlib.Path(path).is_file():
            raise ValueError(f"model={path} is no file; name a fastText model (.bin or .ftz)")
        try:
            self._model = fasttext.load_model(path)
        except ValueError as error:
            raise ValueError(f"model={path} is no fastText model: {error}") from error
        self.labels = [_label(str(name)) for name in self._model.get_labels()]

    def guess(self, texts: Sequence[str]) -> list[Guess]:
        """The likeliest language of each text; `und` where the model knows no part of it."""
        # As a list even where it is one: the library's form for one text fails with NumPy 2.
        labels, scores = self._model.predict(list(texts), k=1)
        return [
            # A score comes to 1.00001.
            Guess(_label(names[0]), min(float(values[0]), 1.0)) if len(names) else UNKNOWN
            for names, values in zip(labels, scores, strict=True)
        ]


def _label(name: str) -> str:
    return name.removeprefix("__label__")


def _encode(text: str) -> bytes:
    """As the library does: capitals alone say little, and the model learnt on NFC."""
    if text.isupper():
        text = text.lower()
    return unicodedata.normalize("NFC", text).encode()
