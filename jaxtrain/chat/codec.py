"""A tokenizer as rendering needs it: control tokens by their text, text cut where asked."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxtrain.tokenizer.tokenizer import Tokenizer

_ANCHOR = "\n"


class TokenizerCodec:
    """`render.Codec` of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control_ids = {
            tokenizer.token(number): number for number in tokenizer.special_token_ids
        }
        # Some tokenizers put a space before a text; a piece in the middle of one must have none.
        self._anchor = tokenizer.encode(_ANCHOR)
        self._adds_prefix = not np.array_equal(self._after_anchor("a"), tokenizer.encode("a"))

    @property
    def control_ids(self) -> Mapping[str, int]:
        """The special tokens by their text."""
        return self._control_ids

    def encode_pieces(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """The ids of a text cut into pieces, with a token boundary at every cut."""
        if not self._adds_prefix or len(pieces) < 2:
            return self._tokenizer.encode_batch(pieces) if pieces else []
        return [self._tokenizer.encode(pieces[0]), *map(self._after_anchor, pieces[1:])]

    def _after_anchor(self, text: str) -> np.ndarray:
        ids = self._tokenizer.encode(_ANCHOR + text)
        if not np.array_equal(ids[: len(self._anchor)], self._anchor):
            return self._tokenizer.encode(text)
        return ids[len(self._anchor) :]
