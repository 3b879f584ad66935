"""The forms in which people have conversations, brought into one: OpenAI's messages.

    messages     {"messages": [{"role", "content", "tool_calls"?, "weight"? or "train"?}], "tools"?}
    sharegpt     {"conversations": [{"from", "value"}], "system"?, "tools"?}
    alpaca       {"instruction", "input"?, "output", "system"?, "history"?}, or with one of
                 "instances", which hold "input" and "output"
    prompt       {"prompt", "response" or "completion"}: texts, or lists of messages
    text         {"text"}: no conversation; all of it is trained

A row says its form by its keys; one that fits none, or several, is refused. A message may say
whether it is trained (`train` true or false; `weight` 0 or 1, as OpenAI has it) and how much: any
other weight from 0 on. An assistant's thoughts stand in its `reasoning_content`, or in <think> and
</think> at the beginning of its content.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from jaxtrain.chat.messages import normalize
from jaxtrain.chat.template_run import REASONING
from jaxtrain.conversations.parts import without_parts

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

FLOAT32_MAX: Final = (2 - 2.0**-23) * 2.0**127  # weights and scores are stored as float32


class BadRow(ValueError):
    """Why a row is no conversation; `reason` is one of few, the message says what exactly."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Dropped(ValueError):
    """A row in order that is left out all the same; `reason` is one of few."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Conversation(NamedTuple):
    """What was said, and which of it is trained unless more is asked for."""

    messages: list[Message]  # as templates read them
    weights: tuple[float, ...]  # of each message: how much it is trained; only an assistant's is
    tools: list[Any] | None = None
    text: str | None = None  # of a plain text, which has no messages

    @property
    def trained(self) -> tuple[bool, ...]:
        """Of each message, whether it is trained."""
        return tuple(weight > 0 for weight in self.weights)


def read(record: Mapping[str, Any], form: str | None = None) -> Conversation:
    """The conversation in a row.

    Args:
      form: a key of FORMS; None: whichever the row's keys say.

    Raises:
      BadRow: where it is none.
    """
    return read_as(record, FORMS, form)


_Read = TypeVar("_Read")


def read_as(
    record: Mapping[str, Any],
    forms: "Mapping[str, tuple[Fits, Callable[[Mapping[str, Any]], _Read]]]",
    form: str | None,
) -> _Read:
    """What a row holds, by the one of `forms` that its keys fit, or by the one named `form`.

    Raises:
      BadRow: where it holds no such thing.
    """
    record = {key: value for key, value in record.items() if value is not None}
    if form is None:
        fitting = [name for name, (fits, _) in forms.items() if fits(record)]
        if len(fitting) > 1:
            raise BadRow(
                "fits several forms",
                f"fits the forms {' and '.join(fitting)} by its keys {sorted(record)}; name one "
                "with --form",
            )
        if not fitting:
            raise BadRow(
                "fits no form", f"has the keys {sorted(record)}, of none of {', '.join(forms)}"
            )
        form = fitting[0]
    elif not forms[form][0](record):
        raise BadRow("fits no form", f"has the keys {sorted(record)}, not those of {form}")
    try:
        return forms[form][1](record)
    except (BadRow, Dropped):
        raise
    except ValueError as error:
        raise BadRow("bad messages", str(error)) from error


def _of_messages(record: Mapping[str, Any]) -> Conversation:
    return _conversation(plain_messages(record["messages"]), record.get("tools"))


def _of_sharegpt(record: Mapping[str, Any]) -> Conversation:
    messages = system_message(record) + sharegpt_messages(record["conversations"], "conversations")
    return _conversation(messages, record.get("tools"))


def sharegpt_messages(turns: Any, where: str) -> list[Message]:
    """The messages that ShareGPT's turns are; `where` names them in errors.

    Raises:
      ValueError: where they are none.
    """
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise ValueError(f"{where} must be a list of objects with `from` and `value`")
    return [_sharegpt_message(turn, f"{where}[{number}]") for number, turn in enumerate(turns)]


def _sharegpt_message(turn: Mapping[str, Any], where: str) -> Message:
    speaker = turn.get("from", turn.get("role"))
    content = turn.get("value", turn.get("content"))
    if speaker not in _SHAREGPT_ROLES:
        raise ValueError(f"{where}.from={speaker!r} must be one of {', '.join(_SHAREGPT_ROLES)}")
    kept = {name: turn[name] for name in (*_FLAGS, REASONING) if turn.get(name) is not None}
    message = {"role": _SHAREGPT_ROLES[speaker], "content": content} | kept
    if speaker == _CALL:
        message |= {"content": "", "tool_calls": _calls(content, where)}
    return message


def _calls(content: Any, where: str) -> list[Any]:
    """The calls that ShareGPT has as JSON text: {"name", "arguments"}, or a list of them."""
    calls = _json(content, f"{where}.value")
    calls = calls if isinstance(calls, list) else [calls]
    return [{"type": "function", "function": call} for call in calls]


def _of_alpaca(record: Mapping[str, Any]) -> Conversation:
    if instances := record.get("instances"):
        if len(instances) != 1 or not isinstance(instances[0], Mapping):
            raise ValueError(f"instances has {len(instances)} of them; make a row of each")
        record = {**record, **instances[0]}
    answer = {"role": "assistant", "content": _text(record, "output")}
    return _conversation([*alpaca_prompt(record), answer])


def alpaca_prompt(record: Mapping[str, Any]) -> list[Message]:
    """What stands before Alpaca's answer: system message, history, instruction with its input.

    Raises:
      ValueError: where one of them is none.
    """
    question = _text(record, "instruction")
    if more := record.get("input"):
        question += f"\n\n{_text({'input': more}, 'input')}"
    before: list[Message] = []
    for pair in record.get("history") or []:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError("history must be a list of pairs (question, answer)")
        before += [
            {"role": "user", "content": pair[0]},
            {"role": "assistant", "content": pair[1]},
        ]
    return [*system_message(record), *before, {"role": "user", "content": question}]


def _of_prompt(record: Mapping[str, Any]) -> Conversation:
    prompt, answer = record["prompt"], record[_answer_key(record)]
    before = [message | {"train": False} for message in prompt_messages(prompt)]
    if isinstance(answer, str):
        answer = [{"role": "assistant", "content": answer}]
    return _conversation(
        system_message(record) + before + plain_messages(answer), record.get("tools")
    )


def prompt_messages(prompt: Any) -> list[Message]:
    """A prompt's messages; a text is a user's.

    Raises:
      ValueError: where it is neither.
    """
    return plain_messages(
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    )


def _of_text(record: Mapping[str, Any]) -> Conversation:
    text = _text(record, "text")
    if not text.strip():
        raise BadRow("empty", "its text is empty")
    return Conversation([], (), text=text)


def _answer_key(record: Mapping[str, Any]) -> str:
    return next(key for key in _RESPONSES if key in record)


Fits = Callable[[Mapping[str, Any]], bool]
_Reads = Callable[[Mapping[str, Any]], Conversation]
#: Name → (whether a row's keys are those of the form, the conversation in it).
FORMS: Final[Mapping[str, tuple[Fits, _Reads]]] = {
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
    given = [_weight(message, number) for number, message in enumerate(messages)]
    read = normalized(messages)
    weights = tuple(
        (1.0 if weight is None else weight) if message["role"] == "assistant" else 0.0
        for weight, message in zip(given, read, strict=True)
    )
    return Conversation(read, weights, tools_of(tools))


def normalized(messages: list[Message]) -> list[Message]:
    """The messages as templates read them, without what they say of their training.

    Raises:
      ValueError: names the message and what is wrong with it.
    """
    for number, message in enumerate(messages):
        if not isinstance(message.get(REASONING, ""), str):
            raise ValueError(f"messages[{number}].{REASONING} must be a text")
    return normalize(
        [{key: value for key, value in each.items() if key not in _FLAGS} for each in messages]
    )


def _weight(message: Message, number: int) -> float | None:
    """How much a message says it is trained; None: it says nothing."""
    given = {name: message[name] for name in _FLAGS if message.get(name) is not None}
    if not given:
        return None
    (name, value), *more = given.items()
    is_flag = value in (0, 1)
    is_weight = name == "weight" and isinstance(value, (int, float)) and 0 <= value <= FLOAT32_MAX
    if more or not (is_flag or is_weight):
        raise ValueError(
            f"messages[{number}]: weight must be a number from 0 on (at most {FLOAT32_MAX:.2g}), "
            "or train true or false"
        )
    if value and message.get("role") != "assistant":
        raise ValueError(
            f"messages[{number}] is a {message.get('role')}'s and asks to be trained; only what "
            "an assistant says is"
        )
    return float(value)


def plain_messages(messages: Any) -> list[Message]:
    """The messages without the keys that a table adds where they have no value.

    Raises:
      ValueError: where they are no list of objects.
    """
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
        raise ValueError("messages must be a list of objects with role and content")
    return [
        without_parts(
            {key: value for key, value in message.items() if value is not None},
            f"messages[{number}]",
        )
        for number, message in enumerate(messages)
    ]


def tools_of(tools: Any) -> list[Any] | None:
    """The schemas of functions in a row's `tools`, which may be JSON text.

    Raises:
      ValueError: where they are none.
    """
    tools = _json(tools, "tools") if isinstance(tools, str) and tools.strip() else tools
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError("tools must be a list of objects")
    return [
        tool if "function" in tool else {"type": "function", "function": dict(tool)}
        for tool in tools
    ]


def system_message(record: Mapping[str, Any]) -> list[Message]:
    """The row's `system`, as a message; none where it has none."""
    system = record.get("system")
    return [{"role": "system", "content": system}] if system else []


def _text(record: Mapping[str, Any], key: str) -> str:
    if not isinstance(record[key], str):
        raise ValueError(f"{key} must be a text")
    return record[key]


def _json(text: Any, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
