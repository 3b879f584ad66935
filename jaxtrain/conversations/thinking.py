"""Which tokens of what an assistant says are its thoughts, whatever markers the template has.

They go from where the assistant begins to speak through `</think>`, where a `<think>` stands at its
beginning: written by the row, by the template around `reasoning_content`, or already in front of
the answer. Under a template with markers of its own, `reasoning_content` says where they are: up to
where the content begins.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from jaxtrain.chat.spans import Span
from jaxtrain.chat.template_run import REASONING, Message
from jaxtrain.chat.tracked import Tracked

THINK: Final = 1  # the mark of thoughts; 0 of all else

_OPEN, _CLOSE = "<think>", "</think>"
_AT_BEGINNING = re.compile(rf"\s*{_OPEN}.*?{_CLOSE}", re.DOTALL)


def mark_thinking(messages: Sequence[Message], text: Tracked, spans: Sequence[Span]) -> np.ndarray:
    """`chat.render.Mark`: THINK on each character of an assistant's thoughts, markers included."""
    plain = str.__str__(text)
    marks = np.zeros(len(plain), np.int32)
    for start, stop, message in spans:
        marks[start : start + _length(plain[:start], plain[start:stop], messages[message])] = THINK
    return marks


def _length(before: str, said: str, message: Message) -> int:
    """The number of characters at the beginning of `said` that are thoughts."""
    if found := _AT_BEGINNING.match(said):
        return found.end()
    if before.rstrip().endswith(_OPEN) and _CLOSE in said:
        return said.index(_CLOSE) + len(_CLOSE)
    thoughts = _stripped(message.get(REASONING))
    at = said.find(thoughts) if thoughts else -1
    if at < 0:
        return 0
    end = at + len(thoughts)
    content = _stripped(message.get("content"))
    return max(said.find(content, end) if content else -1, end)


def _stripped(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
