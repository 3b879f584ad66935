"""Byte-level byte-pair encoding: lossless, total, and deaf to control tokens in the text.

A text becomes its UTF-8 bytes, each of which is a token, and no normaliser touches it: every text
has ids, and they give back exactly that text. Splitting before merging follows GPT-2's pattern
(words with the space before them, numbers, runs of punctuation, runs of white space). Trained and
run by the `tokenizers` library; the file is a standard `tokenizer.json`.

Control tokens have the ids after the learned ones. They are put in by id where the form of a
document is decided and never read from a text: in a document, `<|eos|>` is seven characters.

Training is deterministic: of two pairs that occur equally often the one of lower ids is merged
first, whatever the order of the text, the number of threads or the process.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from jaxtrain import files

BOS: Final = "<|bos|>"
EOS: Final = "<|eos|>"
PAD: Final = "<|pad|>"
MASK: Final = "<|mask|>"
CONTROL_TOKENS: Final = (BOS, EOS, PAD, MASK)

MIN_PAIR_COUNT: Final = 2  # a pair that occurs once says nothing about other text
_FORMAT: Final = 1  # raised when the same text and size would give another tokenizer
_SMALLEST_VOCAB: Final = 256 + len(CONTROL_TOKENS)
_MAX_TRAINING_BYTES: Final = 2**31  # the library counts pairs in 32 bits and would wrap around


class Tokenizer:
    """Text to ids and back."""

    def __init__(self, serialized: bytes) -> None:
        """Args: serialized: the content of a `tokenizer.json`."""
        self.serialized = serialized
        self._engine = tokenizers.Tokenizer.from_buffer(serialized)
        # Not kept in the file. By the library's default a text that looks like a control token
        # becomes one.
        self._engine.encode_special_tokens = True
        missing = [name for name in CONTROL_TOKENS if self._engine.token_to_id(name) is None]
        if missing:
            raise ValueError(f"lacks the control tokens {', '.join(missing)}")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Reads a `tokenizer.json`.

        Raises:
          ValueError: names the file and why it is not a tokenizer of this kind.
        """
        serialized = pathlib.Path(path).read_bytes()
        try:
            return cls(serialized)
        except Exception as error:  # the library raises bare `Exception` for a malformed file
            raise ValueError(f"{path} is not a usable tokenizer: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a `tokenizer.json`, whole or not at all."""
        with files.write_whole(path) as file:
            file.write(self.serialized)

    @property
    def sha256(self) -> str:
        """Hash of the tokenizer's content, in hex: the same for every copy of its file."""
        return hashlib.sha256(self.serialized).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Number of ids, control tokens included: ids are below this."""
        return self._engine.get_vocab_size(with_added_tokens=True)

    def control_id(self, name: str) -> int:
        """The id of one of CONTROL_TOKENS."""
        if name not in CONTROL_TOKENS:
            raise ValueError(f"{name!r} is no control token; one of {', '.join(CONTROL_TOKENS)}")
        return self._engine.token_to_id(name)

    def encode(self, text: str) -> np.ndarray:
        """The ids (uint32) of a text, nothing added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, computed on all cores.

        Raises:
          ValueError: for a text with a lone surrogate, which has no bytes.
        """
        for text in texts:
            _refuse_surrogates(text)
        encodings = self._engine.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, control tokens by name; bytes that are no UTF-8 become U+FFFD.

        Raises:
          ValueError: for an id that the vocabulary does not have.
        """
        ids = [int(each) for each in ids]
        outside = [each for each in ids if not 0 <= each < self.vocab_size]
        if outside:
            raise ValueError(f"id {outside[0]} is not below the vocabulary's {self.vocab_size}")
        return self._engine.decode(ids, skip_special_tokens=False)


def recipe(vocab_size: int, input_sha256: Sequence[str]) -> dict[str, Any]:
    """All that decides what `train` learns from files of these contents, as JSON values."""
    return {
        "kind": "byte-level BPE",
        "format": _FORMAT,
        "vocab_size": vocab_size,
        "control_tokens": list(CONTROL_TOKENS),
        "min_pair_count": MIN_PAIR_COUNT,
        "input_sha256": sorted(input_sha256),  # the order of the texts changes nothing
    }


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learns a vocabulary of exactly `vocab_size` ids from `texts`, CONTROL_TOKENS included.

    Raises:
      ValueError: where the size is too small to hold all bytes, or larger than the text supports.
    """
    if vocab_size < _SMALLEST_VOCAB:
        raise ValueError(
            f"vocab_size={vocab_size} must be at least {_SMALLEST_VOCAB}: all bytes and "
            f"{len(CONTROL_TOKENS)} control tokens"
        )
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL_TOKENS),
        min_frequency=MIN_PAIR_COUNT,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    engine.train_from_iterator(_within_limit(texts), trainer)
    engine.add_special_tokens(list(CONTROL_TOKENS))
    found = engine.get_vocab_size(with_added_tokens=True)
    if found < vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} must be at most {found} for this text, in which no further "
            f"pair occurs {MIN_PAIR_COUNT} times; lower it or add text"
        )
    return Tokenizer(engine.to_str().encode())


def _within_limit(texts: Iterable[str]) -> Iterator[str]:
    total = 0
    for text in texts:
        total += len(_refuse_surrogates(text))
        if total >= _MAX_TRAINING_BYTES:
            raise ValueError(
                f"the text to train on must be below {_MAX_TRAINING_BYTES:,} bytes, beyond which "
                "pair counts overflow; train on a sample"
            )
        yield text


def _refuse_surrogates(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text has the lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}, which has no bytes; repair the text where it was read"
        ) from error
