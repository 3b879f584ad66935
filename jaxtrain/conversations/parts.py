"""Content in parts, as data of reasoning and of tool use has it: thoughts, calls and texts apart.

    {"type": "text", "text": …}                       (or "value")
    {"type": "reasoning" or "thinking", "value": …}   (or "text", or under the type's name)
    {"type": "tool_call", "value": {"name", "arguments"}, or that as JSON text}

Of parts of other types (images, audio) the one who reads the message says that they are refused.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from jaxtrain.chat.template_run import REASONING

_THOUGHTS: Final = ("reasoning", "thinking")
_CALL: Final = "tool_call"


def without_parts(message: dict[str, Any], where: str) -> dict[str, Any]:
    """The message with its thoughts and calls beside its content, which is left of it.

    Raises:
      ValueError: names the part and what is wrong with it.
    """
    parts = message.get("content")
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        return message
    texts, thoughts, calls = [], [], []
    for number, part in enumerate(parts):
        place, kind = f"{where}.content[{number}]", part.get("type")
        if kind in _THOUGHTS:
            thoughts.append(_text(part, place, "value", "text", kind))
        elif kind == _CALL:
            calls.append({"type": "function", "function": _call(part.get("value"), place)})
        elif kind == "text":
            texts.append({"type": "text", "text": _text(part, place, "text", "value")})
        else:
            texts.append(part)
    beside: dict[str, Any] = {REASONING: "".join(thoughts)} if thoughts else {}
    if calls:
        beside["tool_calls"] = [*(message.get("tool_calls") or ()), *calls]
    return {**message, "content": texts, **beside}


def _text(part: Mapping[str, Any], place: str, *keys: str) -> str:
    found = next((part[key] for key in keys if part.get(key) is not None), None)
    if not isinstance(found, str):
        raise ValueError(f"{place} has no text in {' or '.join(dict.fromkeys(keys))}")
    return found


def _call(value: Any, place: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"{place}.value is not JSON: {error}") from error
