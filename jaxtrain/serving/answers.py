"""Requests in text through an engine: what each answer says, as it comes.

An answer ends at an end token, at a stop string, or at its length. Neither an end token nor a stop
string is part of its text.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrain.chat.messages import normalize, normalize_tools
from jaxtrain.chat.render import render_prompt
from jaxtrain.decode.engine import Emitted, Engine, Finish, NotFinite, Request
from jaxtrain.decode.sampling import Sampling
from jaxtrain.decode.text import AnswerText, stop_strings
from jaxtrain.serving.model import TextModel
from jaxtrain.tokenizer.tokenizer import Tokenizer


class Piece(NamedTuple):
    """What is new of an answer."""

    text: str
    ids: list[int]  # tokens drawn, an end token included
    logprobs: list[float]  # of `ids` under the model, nats
    top: list[list[tuple[int, float]]]  # at each place (id, log-probability), likeliest first
    finish: Finish | None  # None: it goes on


@dataclasses.dataclass(frozen=True)
class Ask:
    """A prompt in ids and how to answer it."""

    ids: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    stop: Sequence[str] = ()
    num_top_logprobs: int = 0
    ignore_end: bool = False  # go on after end tokens, to a fixed length
    goes_on: bool = False  # the answer is the rest of the prompt's text, not a turn of its own


def text_prompt(model: TextModel, text: Any) -> list[int]:
    """The ids of a text to continue.

    Raises:
      ValueError: where it is no text.
    """
    if not isinstance(text, str):
        raise ValueError(f"prompt must be a text, not {type(text).__name__}")
    return model.prompt_ids(text)


def chat_prompt(
    model: TextModel,
    messages: Any,
    tools: Any = None,
    options: Any = None,
) -> list[int]:
    """The ids of a conversation up to where the assistant answers.

    Args:
      options: variables of the chat template, such as `enable_thinking`.

    Raises:
      ValueError: where the conversation is malformed or the model has no template.
    """
    template = model.chat()
    if options is not None and not isinstance(options, Mapping):
        raise ValueError("chat_template_kwargs must be an object")
    try:
        rendered = render_prompt(
            normalize(messages),
            template,
            model.codec,
            tools=normalize_tools(tools),
            options=options,
        )
    except RecursionError as error:
        raise ValueError("messages or tools are nested too deeply") from error
    return rendered.ids.tolist()


class Answer:
    """One answer while it is drawn."""

    def __init__(self, model: TextModel, ask: Ask) -> None:
        """Raises:
        ValueError: for a stop string that is none.
        """
        self.ask = ask
        self._ends = () if ask.ignore_end else model.end_ids
        after = _text_ids(model.tokenizer, ask.ids) if ask.goes_on else []
        self._text = AnswerText(model.tokenizer.stream(after), stop_strings(ask.stop))
        self.is_done = False

    @property
    def request(self) -> Request:
        """For the engine."""
        ask = self.ask
        return Request(ask.ids, ask.max_new_tokens, ask.sampling, self._ends, ask.num_top_logprobs)

    def take(self, emitted: Emitted) -> Piece:
        """What the engine has drawn for it, as text; `is_done` where a stop string ended it.

        Raises:
          NotFinite: where the model had nothing to draw from.
        """
        ids, finish = emitted.ids, emitted.finish
        if finish == "failed":
            raise NotFinite(emitted.request, self._text.num_ids + len(ids))
        before = self._text.num_ids
        words = ids[:-1] if finish == "stop" else ids
        text = self._text.push(words)
        if finish is not None and not self._text.is_stopped:
            text += self._text.finish()
        count = len(ids)
        if self._text.is_stopped:
            count, finish = self._text.num_ids - before, "stop"
        self.is_done = finish is not None
        return Piece(text, ids[:count], emitted.logprobs[:count], emitted.top[:count], finish)


def _text_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The ids of a prompt that stand for text: a BOS alone begins a text, it does not go before."""
    bos = tokenizer.special_ids.get("bos")
    return [each for each in ids if each != bos and each < tokenizer.vocab_size]


def answer_all(
    model: TextModel, engine: Engine, asks: Iterable[Ask]
) -> Iterator[tuple[int, Piece]]:
    """(number of the ask, what is new of its answer) for any number of asks, as it comes."""
    answers: dict[int, Answer] = {}

    def requests() -> Iterator[Request]:
        for number, ask in enumerate(asks):
            answers[number] = Answer(model, ask)
            yield answers[number].request

    for emitted in engine.generate(requests()):
        answer = answers.get(emitted.request)
        if answer is None:
            continue
        yield emitted.request, answer.take(emitted)
        if answer.is_done:
            if emitted.finish is None:
                engine.cancel(emitted.request)
            del answers[emitted.request]
