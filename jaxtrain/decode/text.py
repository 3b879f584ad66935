"""An answer's text as its tokens arrive: whole characters, up to a stop string.

What could be the beginning of a stop string is held back until the next tokens decide, so that no
part of one is ever given out, however the tokens cut it.
"""

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """Ids to text one at a time, never a broken character (see `tokenizer.streaming`)."""

    def push(self, token_id: int) -> str:
        """The text that this id completes."""
        ...

    def finish(self) -> str:
        """What is left when no further id comes."""
        ...


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """One stop string or several as several: a string is never taken for a list of its letters.

    Raises:
      ValueError: for what is no string, or an empty one, at which every text would stop.
    """
    if stop is not None and not isinstance(stop, (str, list, tuple)):
        raise ValueError(f"stop={stop!r} must be a string or a list of strings")
    several = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for each in several:
        if not isinstance(each, str) or not each:
            raise ValueError(f"stop={each!r} must be a string of at least one character")
    return several


class AnswerText:
    """The text of one answer."""

    def __init__(self, decoder: Decoder, stop: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._stop = stop_strings(stop)
        self._held = ""
        self.is_stopped = False  #: a stop string has come; nothing more will be given out
        self.num_ids = 0  #: ids taken until then, the one that completed the stop string included

    def push(self, ids: Sequence[int]) -> str:
        """The new text of these ids that is certain to belong to the answer."""
        given = []
        for each in ids:
            if self.is_stopped:
                break
            self.num_ids += 1
            given.append(self._take(self._decoder.push(each)))
        return "".join(given)

    def finish(self) -> str:
        """The rest, once the last id has come."""
        if self.is_stopped:
            return ""
        text = self._take(self._decoder.finish())
        held, self._held = self._held, ""
        return text if self.is_stopped else text + held

    def _take(self, text: str) -> str:
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.is_stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
