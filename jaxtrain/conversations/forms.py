"""The forms in which people have conversations, brought into one: OpenAI's messages.

    messages     {"messages": [{"role", "content", "tool_calls"?, "weight"? or "train"?}], "tools"?}
    sharegpt     {"conversations": [{"from", "value"}], "system"?, "tools"?}
    alpaca       {"instruction", "input"?, "output", "system"?, "history"?}, or with one of
                 "instances", which hold "input" and "output"
    prompt       {"prompt", "response" or "completion"}: texts, or lists of messages
    text         {"text"}: no conversation; all of it is trained

A row says its form by its keys; one that fits none, or several, is refused. A message may say
whether it is trained (`weight` 0 or 1, as OpenAI has it, or `train` true or false).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from jaxtrain.chat.messages import normalize

Message = dict[str, Any]

_SHAREGPT_ROLES: Final = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
}
_CALL: Final = "function_call"
_RESPONSES: Final = ("response", "completion")
_FLAGS: Final = ("train", "weight")


class BadRow(ValueError):
    """Why a row is no conversation; `reason` is one of few, the message says what exactly."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Conversation(NamedTuple):
    """What was said, and which of it is trained unless more is asked for."""

    messages: list[Message]  # as templates read them
    trained: tuple[bool, ...]  # of each message: an assistant's that was not opted out
    tools: list[Any] | None = None
    text: str | None = None  # of a plain text, which has no messages


def read(record: Mapping[str, Any], form: str | None = None) -> Conversation:
    """The conversation in a row.

    Args:
      form: a key of FORMS; None: whichever the row's keys say.

    Raises:
      BadRow: where it is none.
    """
    record = {key: value for key, value in record.items() if value is not None}
    if form is None:
        fitting = [name for name, (fits, _) in FORMS.items() if fits(record)]
        if len(fitting) > 1:
            raise BadRow(
                "fits several forms",
                f"fits the forms {' and '.join(fitting)} by its keys {sorted(record)}; name one "
                "with --form",
            )
        if not fitting:
            raise BadRow(
                "fits no form", f"has the keys {sorted(record)}, of none of {', '.join(FORMS)}"
            )
        form = fitting[0]
    elif not FORMS[form][0](record):
        raise BadRow("fits no form", f"has the keys {sorted(record)}, not those of {form}")
    try:
        return FORMS[form][1](record)
    except BadRow:
        raise
    except ValueError as error:
        raise BadRow("bad messages", str(error)) from error


def _of_messages(record: Mapping[str, Any]) -> Conversation:
    return _conversation(_plain(record["messages"]), record.get("tools"))


def _of_sharegpt(record: Mapping[str, Any]) -> Conversation:
    turns = record["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise ValueError("conversations must be a list of objects with `from` and `value`")
    messages = [_sharegpt_message(turn, number) for number, turn in enumerate(turns)]
    return _conversation(_system(record) + messages, record.get("tools"))


def _sharegpt_message(turn: Mapping[str, Any], number: int) -> Message:
    speaker = turn.get("from", turn.get("role"))
    content = turn.get("value", turn.get("content"))
    if speaker not in _SHAREGPT_ROLES:
        raise ValueError(
            f"conversations[{number}].from={speaker!r} must be one of {', '.join(_SHAREGPT_ROLES)}"
        )
    flags = {name: turn[name] for name in _FLAGS if turn.get(name) is not None}
    message = {"role": _SHAREGPT_ROLES[speaker], "content": content} | flags
    if speaker == _CALL:
        message |= {"content": "", "tool_calls": _calls(content, number)}
    return message


def _calls(content: Any, number: int) -> list[Any]:
    """The calls that ShareGPT has as JSON text: {"name", "arguments"}, or a list of them."""
    calls = _json(content, f"conversations[{number}].value")
    calls = calls if isinstance(calls, list) else [calls]
    return [{"type": "function", "function": call} for call in calls]


def _of_alpaca(record: Mapping[str, Any]) -> Conversation:
    if instances := record.get("instances"):
        if len(instances) != 1 or not isinstance(instances[0], Mapping):
            raise ValueError(f"instances has {len(instances)} of them; make a row of each")
        record = {**record, **instances[0]}
    question = _text(record, "instruction")
    if more := record.get("input"):
        question += f"\n\n{_text({'input': more}, 'input')}"
    before: list[Message] = []
    for pair in record.get("history") or []:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError("history must be a list of pairs (question, answer)")
        before += _exchange(*pair)
    return _conversation(_system(record) + before + _exchange(question, _text(record, "output")))


def _of_prompt(record: Mapping[str, Any]) -> Conversation:
    prompt, answer = record["prompt"], record[_answer_key(record)]
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(answer, str):
        answer = [{"role": "assistant", "content": answer}]
    before = [message | {"train": False} for message in _plain(prompt)]
    return _conversation(_system(record) + before + _plain(answer), record.get("tools"))


def _of_text(record: Mapping[str, Any]) -> Conversation:
    text = _text(record, "text")
    if not text.strip():
        raise BadRow("empty", "its text is empty")
    return Conversation([], (), text=text)


def _answer_key(record: Mapping[str, Any]) -> str:
    return next(key for key in _RESPONSES if key in record)


_Fits = Callable[[Mapping[str, Any]], bool]
_Reads = Callable[[Mapping[str, Any]], Conversation]
#: Name → (whether a row's keys are those of the form, the conversation in it).
FORMS: Final[Mapping[str, tuple[_Fits, _Reads]]] = {
    "messages": (lambda record: "messages" in record, _of_messages),
    "sharegpt": (lambda record: "conversations" in record, _of_sharegpt),
    "alpaca": (
        lambda record: "instruction" in record and ("output" in record) != ("instances" in record),
        _of_alpaca,
    ),
    "prompt": (
        lambda record: "prompt" in record and sum(key in record for key in _RESPONSES) == 1,
        _of_prompt,
    ),
    "text": (lambda record: "text" in record, _of_text),
}


def _conversation(messages: list[Message], tools: Any = None) -> Conversation:
    flags = [_is_trained(message, number) for number, message in enumerate(messages)]
    bare = [
        {key: value for key, value in message.items() if key not in _FLAGS} for message in messages
    ]
    read = normalize(bare)
    trained = [
        flag is not False and message["role"] == "assistant"
        for flag, message in zip(flags, read, strict=True)
    ]
    return Conversation(read, tuple(trained), _tools(tools))


def _is_trained(message: Message, number: int) -> bool | None:
    """What a message says of itself; None: nothing."""
    given = [message[name] for name in _FLAGS if message.get(name) is not None]
    if not given:
        return None
    if len(given) > 1 or given[0] not in (0, 1):
        raise ValueError(f"messages[{number}]: weight must be 0 or 1, or train true or false")
    if given[0] and message.get("role") != "assistant":
        raise ValueError(
            f"messages[{number}] is a {message.get('role')}'s and asks to be trained; only what "
            "an assistant says is"
        )
    return bool(given[0])


def _plain(messages: Any) -> list[Message]:
    """The messages without the keys that a table adds where they have no value."""
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
        raise ValueError("messages must be a list of objects with role and content")
    return [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]


def _tools(tools: Any) -> list[Any] | None:
    tools = _json(tools, "tools") if isinstance(tools, str) and tools.strip() else tools
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError("tools must be a list of objects")
    return [
        tool if "function" in tool else {"type": "function", "function": dict(tool)}
        for tool in tools
    ]


def _system(record: Mapping[str, Any]) -> list[Message]:
    system = record.get("system")
    return [{"role": "system", "content": system}] if system else []


def _exchange(question: Any, answer: Any) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _text(record: Mapping[str, Any], key: str) -> str:
    if not isinstance(record[key], str):
        raise ValueError(f"{key} must be a text")
    return record[key]


def _json(text: Any, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
