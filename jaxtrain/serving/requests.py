"""Requests of the OpenAI API as this server understands them; what it does not know is refused.

Fields beyond the API's own: top_k, min_p, repetition_penalty, and chat_template_kwargs, under the
names that other servers use for them.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from jaxtrain.decode.engine import MAX_TOP_LOGPROBS
from jaxtrain.decode.sampling import Sampling
from jaxtrain.decode.text import stop_strings
from jaxtrain.serving.answers import Ask, chat_prompt, text_prompt
from jaxtrain.serving.model import TextModel

MAX_SAMPLES = 64
MAX_ANSWERS = 512
MAX_STOPS = 16
_DEFAULT_TEXT_TOKENS = 16  # of the API, where a completion does not say

_COMMON = (
    "model", "max_tokens", "temperature", "top_p", "n", "stream", "stream_options", "stop", "seed",
    "top_k", "min_p", "repetition_penalty", "user",
)  # fmt: skip
#: Fields that are accepted only at a value that changes nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "logit_bias": (None, {}),
    "echo": (False, None),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
    "parallel_tool_calls": (None, True, False),
    "store": (None, False),
    "metadata": (None, {}),
    "service_tier": (None, "auto", "default"),
    "modalities": (None, ["text"]),
}


@dataclasses.dataclass(frozen=True)
class Parsed:
    """A request as answers to draw: for each prompt, `num_samples` asks in a row."""

    asks: list[Ask]
    num_samples: int
    is_streamed: bool
    includes_usage: bool  # in a last piece of a stream
    gives_logprobs: bool

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts, each counted once."""
        return sum(len(ask.ids) for ask in self.asks[:: self.num_samples])


def completion(body: Mapping[str, Any], model: TextModel, max_len: int) -> Parsed:
    """A body of /v1/completions.

    Raises:
      ValueError: names the field and what is wrong with it.
    """
    fields = _Fields(body, (*_COMMON, "prompt", "logprobs"))
    prompt = fields.get("prompt", "")
    several = prompt if isinstance(prompt, list) and not _is_ids(prompt) else [prompt]
    if not several:
        raise ValueError("prompt is empty; give a text, a list of texts, or token ids")
    prompts = [each if _is_ids(each) else text_prompt(model, each) for each in several]
    num_top = fields.integer("logprobs", None, 0, MAX_TOP_LOGPROBS)
    length = fields.integer("max_tokens", _DEFAULT_TEXT_TOKENS, 1, max_len)
    assert length is not None
    return _parsed(fields, prompts, [length] * len(prompts), num_top, max_len, goes_on=True)


def chat(body: Mapping[str, Any], model: TextModel, max_len: int) -> Parsed:
    """A body of /v1/chat/completions; without a length the answer may fill the context.

    Raises:
      ValueError: names the field and what is wrong with it.
    """
    names = ("messages", "max_completion_tokens", "logprobs", "top_logprobs", "tools")
    fields = _Fields(body, (*_COMMON, *names, "chat_template_kwargs"))
    ids = chat_prompt(
        model,
        fields.get("messages", None),
        fields.get("tools", None),
        fields.get("chat_template_kwargs", None),
    )
    wants_logprobs = fields.boolean("logprobs")
    num_top = fields.integer("top_logprobs", 0, 0, MAX_TOP_LOGPROBS)
    if num_top and not wants_logprobs:
        raise ValueError("top_logprobs needs logprobs=true")
    length = fields.integer("max_completion_tokens", None, 1, max_len)
    length = length or fields.integer("max_tokens", None, 1, max_len)
    room = max(1, max_len - len(ids))
    return _parsed(fields, [ids], [length or room], num_top if wants_logprobs else None, max_len)


def _parsed(
    fields: "_Fields",
    prompts: list[list[int]],
    lengths: list[int],
    num_top: int | None,
    max_len: int,
    goes_on: bool = False,
) -> Parsed:
    num_samples = fields.integer("n", 1, 1, MAX_SAMPLES) or 1
    if len(prompts) * num_samples > MAX_ANSWERS:
        raise ValueError(
            f"{len(prompts)} prompts and n={num_samples} are more than {MAX_ANSWERS} answers; send "
            "several requests"
        )
    sampling = _sampling(fields)
    stop = stop_strings(fields.get("stop", None))
    if len(stop) > MAX_STOPS:
        raise ValueError(f"stop has {len(stop)} strings, more than {MAX_STOPS}")
    asks = []
    for ids, length in zip(prompts, lengths, strict=True):
        if len(ids) + length > max_len:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and the answer may have {length}, together "
                f"more than the {max_len} of this server; shorten one of them"
            )
        asks += [
            Ask(
                ids,
                length,
                dataclasses.replace(sampling, seed=(sampling.seed + number) % 2**32),
                stop,
                num_top or 0,
                goes_on=goes_on,
            )
            for number in range(num_samples)
        ]
    options = fields.get("stream_options", {})
    if not isinstance(options, dict):
        raise ValueError(f"stream_options={options!r} must be an object")
    return Parsed(
        asks,
        num_samples,
        fields.boolean("stream"),
        bool(options.get("include_usage")),
        num_top is not None,
    )


def _sampling(fields: "_Fields") -> Sampling:
    seed = fields.integer("seed", None, 0, 2**32 - 1)
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "big")
    return Sampling(
        fields.number("temperature", 1.0),
        fields.integer("top_k", None, 1, 2**31 - 1),
        fields.number("top_p", 1.0),
        fields.number("min_p", 0.0),
        fields.number("repetition_penalty", 1.0),
        seed,
    )


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


class _Fields:
    """The fields of a request by name and type."""

    def __init__(self, body: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for name, value in body.items():
            if name in _NEUTRAL and value not in _NEUTRAL[name]:
                raise ValueError(f"{name} is not supported by this server; leave it out")
            if name not in known and name not in _NEUTRAL:
                raise ValueError(f"{name} is not a field of this request")
        self._body = body

    def get(self, name: str, default: Any) -> Any:
        value = self._body.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        value = self.get(name, default)
        if value is not None and (type(value) is not int or not low <= value <= high):
            raise ValueError(f"{name}={value!r} must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name}={value!r} must be a number")
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(f"{name} is too large") from error

    def boolean(self, name: str) -> bool:
        value = self.get(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r} must be true or false")
        return value
