"""Conversations as people and servers write them, checked and brought into the form of templates.

The form is OpenAI's: a list of `{"role": …, "content": …}`, an assistant's `tool_calls`, a tool's
answer. Content in text parts is joined; a call's arguments, a JSON string on the wire, become the
object that templates print; anything that would be lost silently is refused.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def normalize(messages: Any) -> list[dict[str, Any]]:
    """The conversation as templates read it.

    Raises:
      ValueError: names the message and what is wrong with it.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ValueError(f"messages must be a list of messages, not {_kind(messages)}")
    if not messages:
        raise ValueError("messages is empty; a conversation has at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def normalize_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The schemas of functions that an assistant may call; None where there are none.

    Raises:
      ValueError: names the one that is no object.
    """
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)):
        raise ValueError(f"tools must be a list of objects, not {_kind(tools)}")
    for number, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise ValueError(f"tools[{number}] must be an object, not {_kind(tool)}")
    return [dict(tool) for tool in tools] or None


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} must be an object with role and content, not {_kind(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"{where}.role={role!r} must be one of {', '.join(ROLES)}")
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise ValueError(f"{where}.tool_calls must be a list, not {_kind(calls)}")
    if calls and role != "assistant":
        raise ValueError(f"{where}.tool_calls: only an assistant calls tools, not a {role}")
    content = _content(message.get("content"), f"{where}.content")
    if content is None and not calls:
        raise ValueError(f"{where}.content is missing; it must be a text")
    result = dict(message) | {"content": content or ""}
    if calls:
        result["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)
        ]
    return result


def _content(content: Any, where: str) -> str | None:
    if content is None:
        return None
    if isinstance(content, (list, tuple)):
        for number, part in enumerate(content):
            if not isinstance(part, Mapping) or part.get("type") != "text":
                raise ValueError(
                    f"{where}[{number}] must be a part of type text; images, audio and files "
                    "are not supported"
                )
            if not isinstance(part.get("text"), str):
                raise ValueError(f"{where}[{number}].text is missing; it must be a text")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"{where} must be a text or a list of text parts, not {_kind(content)}")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} has the lone surrogate U+{ord(content[error.start]):04X} at character "
            f"{error.start}, which is no text"
        ) from error
    return content


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{where} must have a function with a name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise ValueError(f"{where}.function.arguments is not JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{where}.function.arguments must be an object, not {_kind(arguments)}")
    return dict(call) | {"function": dict(function) | {"arguments": dict(arguments)}}


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(
        type(value), type(value).__name__
    )
