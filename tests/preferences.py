"""Rows of preferences for tests, in every form that people have them."""

from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.chats import conversations

Message = dict[str, Any]
_SHAREGPT = {"system": "system", "user": "human", "assistant": "gpt"}
_TRANSCRIPT = {"user": "Human", "assistant": "Assistant"}


def answer(text: str) -> list[Message]:
    """What an assistant says, as messages."""
    return [{"role": "assistant", "content": text}]


def prompts() -> st.SearchStrategy[list[Message]]:
    """Conversations that wait for an answer."""
    return conversations().map(lambda messages: messages[:-1])


def pair_rows(prompt: Sequence[Message], better: str, worse: str) -> Iterator[dict[str, Any]]:
    """One comparison in every form of a pair that can hold it."""
    prompt = list(prompt)
    last, system = prompt[-1]["content"], prompt[0]["role"] == "system"
    both = {"chosen": better, "rejected": worse}
    messages = {key: answer(text) for key, text in both.items()}
    whole = {key: prompt + answer(text) for key, text in both.items()}
    yield {"prompt": prompt, **both}
    yield {"prompt": prompt, **messages}
    yield {"prompt": prompt, **{key: said[0] for key, said in messages.items()}}
    yield {"messages": prompt, **both}
    yield {"prompt": prompt, **whole}
    yield whole
    yield {
        "conversations": [_sharegpt(message) for message in prompt],
        **{key: _sharegpt(said[0]) for key, said in messages.items()},
    }
    if not system:
        yield {key: "".join(map(_transcript, said)) for key, said in whole.items()}
    said = [message for message in prompt if message["role"] != "system"]
    history = [
        [question["content"], reply["content"]]
        for question, reply in zip(said[:-1:2], said[1::2], strict=True)
    ]
    system_text = prompt[0]["content"] if system else None
    yield {"instruction": last, "system": system_text, "history": history, **both}
    if len(said) == 1:
        yield {"prompt": last, "system": system_text, **both}
        yield {"prompt": last, **whole}


def _sharegpt(message: Message) -> Message:
    return {"from": _SHAREGPT[message["role"]], "value": message["content"]}


def _transcript(message: Message) -> str:
    return f"\n\n{_TRANSCRIPT[message['role']]}: {message['content']}"
