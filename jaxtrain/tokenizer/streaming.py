"""Text as its ids arrive: never a replacement character for what is only incomplete so far."""

import codecs
from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
_MAX_HELD = 16  # ids without a whole character between them; UTF-8 needs at most 4 bytes


class StreamDecoder:
    """Turns ids into text one at a time; the pieces joined are the text of all ids.

    Where each token stands for bytes of its own, those are decoded incrementally. Elsewhere (a
    token's text depends on the one before it) the ids since the last break are decoded again with
    each new one and what is new in their text is given out.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes] | None,
        decode: Callable[[Sequence[int]], str],
        after: Sequence[int] = (),
    ) -> None:
        """Args:
        token_bytes: for each id what it stands for; None where that depends on its neighbours.
        decode: from ids to text; used only without `token_bytes`.
        after: ids that the stream goes on from; their text is not given out.
        """
        self._token_bytes = token_bytes
        self._decode = decode
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._before = list(after)  # ids whose text is out already, as context
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that this id completes, often "" in the middle of a character."""
        if self._token_bytes is not None:
            if not 0 <= token_id < len(self._token_bytes):
                raise ValueError(
                    f"id {token_id} is not below the vocabulary's {len(self._token_bytes)}"
                )
            return self._utf8.decode(self._token_bytes[token_id])
        self._held.append(token_id)
        text = self._new_text()
        if text.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD:
            return ""
        return self._give(text)

    def finish(self) -> str:
        """What is left: incomplete bytes, shown once as U+FFFD; "" where all was given out."""
        if self._token_bytes is not None:
            return self._utf8.decode(b"", final=True)
        return self._give(self._new_text()) if self._held else ""

    def _new_text(self) -> str:
        known = len(self._decode(self._before)) if self._before else 0
        return self._decode([*self._before, *self._held])[known:]

    def _give(self, text: str) -> str:
        # One portion of context is enough: it settles the space before the next.
        self._before, self._held = self._held, []
        return text
