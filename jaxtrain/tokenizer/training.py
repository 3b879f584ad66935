"""What a tokenizer is trained to be: kind, size, special tokens; and the record of it."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from jaxtrain.tokenizer import bpe, sentencepiece_training, wordpiece
from jaxtrain.tokenizer.special_tokens import CONTROL_TOKENS, reserved_names
from jaxtrain.tokenizer.tokenizer import Tokenizer

_FORMAT: Final = 2  # raised when the same text and settings would give another tokenizer

_sentencepiece = sentencepiece_training
_TRAINERS: Final[Mapping[str, Callable[..., Tokenizer]]] = {
    "bpe": bpe.train,
    "wordpiece": wordpiece.train,
    "sentencepiece_unigram": functools.partial(
        _sentencepiece.train, model_type=_sentencepiece.UNIGRAM
    ),
    "sentencepiece_bpe": functools.partial(_sentencepiece.train, model_type=_sentencepiece.BPE),
}

KINDS: Final = tuple(_TRAINERS)
NORMALIZATIONS: Final = ("identity", "nfkc")


@dataclasses.dataclass(frozen=True)
class Training:
    """All that decides what is learned from a text."""

    kind: str
    vocab_size: int  # all ids together, reserved ones included
    num_reserved: int = 0  # ids without a meaning yet, for markers that come later
    pad_to_multiple: int = 1  # further reserved ids, so that the vocabulary can be sharded
    normalization: str = "identity"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} must be one of {', '.join(KINDS)}")
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(
                f"normalization={self.normalization!r} must be one of {', '.join(NORMALIZATIONS)}"
            )
        if self.num_reserved < 0:
            raise ValueError(f"num_reserved={self.num_reserved} must be at least 0")
        if self.pad_to_multiple < 1:
            raise ValueError(f"pad_to_multiple={self.pad_to_multiple} must be at least 1")

    @property
    def num_ids(self) -> int:
        """The vocabulary's size once padded."""
        return -(-self.vocab_size // self.pad_to_multiple) * self.pad_to_multiple

    @property
    def special(self) -> list[str]:
        """The special tokens, in the order of their ids; they come last."""
        padding = self.num_ids - self.vocab_size
        return [*CONTROL_TOKENS, *reserved_names(self.num_reserved + padding)]

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Learns from `texts`.

        Raises:
          ValueError: where the vocabulary is too small or too large for the text, with the bound.
        """
        return _TRAINERS[self.kind](texts, self.num_ids, self.special, self.normalization)

    def recipe(self, texts: Mapping[str, Any]) -> dict[str, Any]:
        """All that decides the result, as JSON values; `texts` says what is learned from."""
        return {"format": _FORMAT, **dataclasses.asdict(self), **texts}


def check_transformers_form(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Raises ValueError where the files for `transformers` give other ids for one of `texts`."""
    content = tokenizer.transformers_files["tokenizer.json"]
    theirs = Tokenizer(content).encode_by_reference(texts)
    for text, ours, other in zip(texts, tokenizer.encode_batch(texts), theirs, strict=True):
        if ours.tolist() != other.tolist():
            raise ValueError(f"as a tokenizer.json it gives other ids for {text[:100]!r}")
