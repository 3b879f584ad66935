"""A conversation to ids, with what an assistant says marked token by token: the only path there is.

The template's text is cut at its control tokens and where an assistant's words begin and end; each
piece is encoded as plain text, each control token is one id. So a control token is an id only where
the template wrote it, and what a model is trained on after a prompt is what it would see there:
the ids of a prompt are a prefix of the ids of the whole conversation, if the template is one.

Where an assistant's words are is said by the template ({% generation %}) or found from rendering
the conversation turn by turn: they begin where the generation prompt ends and go through the
control token that ends the turn. A template that allows neither is refused with the reason.

Markers: `<think>…</think>` at the beginning of an assistant's content is how data sets write what a
model thinks. There the two words are their control tokens, if the tokenizer has them.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxtrain.chat.template import ChatTemplate, TemplateError
from jaxtrain.chat.tracked import (
    Tracked,
    in_generation,
    join,
    may_be_control,
    origins,
    tag_of,
)

ASSISTANT = "assistant"
THINKING = re.compile(r"\s*(<think>).*?(</think>)", re.DOTALL)

_Message = Mapping[str, Any]


class Codec(Protocol):
    """What rendering needs of a tokenizer."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """The control tokens by the text that templates write for them."""
        ...

    def encode_pieces(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """The ids of a text cut into pieces, with a token boundary at every cut."""
        ...


class Rendered(NamedTuple):
    """A conversation as a model reads it; the arrays have one entry for each token."""

    text: str
    ids: np.ndarray  # uint32
    messages: (
        np.ndarray
    )  # int32: the message that the piece of text is of, -1: the template's alone
    turns: (
        np.ndarray
    )  # int32: the assistant message whose words these are, its end token too; or -1


class Span(NamedTuple):
    """Characters `start:stop` are what assistant message `message` says."""

    start: int
    stop: int
    message: int


def render(
    messages: Sequence[_Message],
    template: ChatTemplate,
    codec: Codec,
    *,
    tools: Sequence[_Message] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Rendered:
    """A whole conversation, for training and scoring.

    Raises:
      TemplateError: where the template fails on it, or what the assistant says cannot be found.
    """
    run = _Run(template, codec, tools, options)
    text = run.text(messages)
    return _encode(text, _spans(messages, text, run), run, codec)


def render_prompt(
    messages: Sequence[_Message],
    template: ChatTemplate,
    codec: Codec,
    *,
    tools: Sequence[_Message] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Rendered:
    """A conversation up to where an assistant answers, for generation."""
    run = _Run(template, codec, tools, options)
    text = run.text(messages, prompt=True)
    return _encode(text, _spans(messages, text, run), run, codec)


def rewrites_history(
    messages: Sequence[_Message],
    template: ChatTemplate,
    codec: Codec,
    *,
    tools: Sequence[_Message] | None = None,
    options: Mapping[str, Any] | None = None,
) -> bool:
    """Whether an earlier assistant message reads otherwise once more messages follow.

    True for templates that drop thoughts from all turns but the last: what is trained in a whole
    conversation is then not what the model is to write when that turn is its answer.
    """
    run = _Run(template, codec, tools, options)
    text = run.text(messages)
    return not all(
        text.startswith(run.text(messages[: index + 1]))
        for index, message in enumerate(messages)
        if message["role"] == ASSISTANT
    )


class _Run:
    """One template on one conversation and its beginnings."""

    def __init__(
        self,
        template: ChatTemplate,
        codec: Codec,
        tools: Sequence[_Message] | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self.template, self.tools, self.options = template, tools, options
        literals = sorted(codec.control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, literals)) or r"(?!)")

    def text(self, messages: Sequence[_Message], *, prompt: bool = False) -> Tracked:
        """The rendered text.

        Raises:
          TemplateError: where the template fails, or makes markup of what people wrote.
        """
        marked = [_with_markers(message, index) for index, message in enumerate(messages)]
        text = self._render(marked, prompt)
        defused = [self._defused(message) for message in marked]
        if defused != marked and self._control_words(text) != self._control_words(
            self._render(defused, prompt)
        ):
            raise TemplateError(
                "a message holds the text of a control token, and the chat template treats it so "
                "that it cannot be told from one; remove it, or use another template"
            )
        return text

    def controls(self, text: Tracked) -> Iterator[tuple[int, int, str]]:
        """(start, stop, text) of the control tokens that the template wrote, in order."""
        allowed = may_be_control(text)
        for match in self._control.finditer(str.__str__(text)):
            if allowed[match.start() : match.end()].all():
                yield *match.span(), match.group()

    def _control_words(self, text: Tracked) -> list[str]:
        return [word for _, _, word in self.controls(text)]

    def _render(self, messages: Sequence[_Message], prompt: bool) -> Tracked:
        return self.template.render(
            messages, tools=self.tools, add_generation_prompt=prompt, options=self.options
        )

    def _defused(self, value: Any) -> Any:
        """A message in which nothing reads like a control token, all else and all lengths equal."""
        if isinstance(value, Mapping):
            return {key: self._defused(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._defused(each) for each in value]
        if not isinstance(value, str):
            return value
        tags = value.tags if isinstance(value, Tracked) else tag_of(0)
        kept = {(start, stop) for start, stop, _ in self.controls(Tracked(value, tags))}
        plain = self._control.sub(
            lambda match: match.group() if match.span() in kept else "\ufffd" * len(match.group()),
            str.__str__(value),
        )
        return Tracked(plain, tags) if isinstance(value, Tracked) else plain


def _with_markers(message: _Message, index: int) -> _Message:
    """The message, with the words around an assistant's leading thoughts tagged as markers."""
    content = message.get("content")
    if message.get("role") != ASSISTANT or not isinstance(content, str):
        return message
    thinking = THINKING.match(content)
    if not thinking:
        return message
    text, marker = tag_of(index), tag_of(index, marker=True)
    pieces, at = [], 0
    for group in (1, 2):
        start, stop = thinking.span(group)
        pieces += [Tracked(content[at:start], text), Tracked(content[start:stop], marker)]
        at = stop
    return dict(message) | {"content": join([*pieces, Tracked(content[at:], text)])}


def _spans(messages: Sequence[_Message], text: Tracked, run: _Run) -> list[Span]:
    """What each assistant message says in `text`, in order."""
    turns = [index for index, message in enumerate(messages) if message["role"] == ASSISTANT]
    if run.template.marks_generation:
        return _marked_spans(turns, text)
    return [_found_span(messages, index, text, run) for index in turns]


def _marked_spans(turns: Sequence[int], text: Tracked) -> list[Span]:
    edges = np.diff(in_generation(text).astype(np.int8), prepend=0, append=0)
    starts, stops = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
    if len(starts) != len(turns):
        raise TemplateError(
            f"the chat template marks {len(starts)} stretches with {{% generation %}} for "
            f"{len(turns)} assistant messages; each must have one of its own"
        )
    return [Span(*each) for each in zip(starts, stops, turns, strict=True)]


def _found_span(messages: Sequence[_Message], index: int, text: Tracked, run: _Run) -> Span:
    """The span of one assistant message of a template that does not mark it."""
    start = _beginning(messages, index, text, run)
    said = _places(text, index)
    stop = said[-1] + 1 if said else start
    alone = run.text(messages[: index + 1])
    said_alone = _places(alone, index)
    ending = alone[said_alone[-1] + 1 if said_alone else start :]
    for _, through, _ in run.controls(ending):  # to the token that ends the turn, else all there is
        ending = ending[:through]
        break
    if stop < start or text[stop : stop + len(ending)] != ending:
        raise TemplateError(
            f"the chat template ends assistant message {index} otherwise when more messages "
            "follow, so what a model should learn to write is not defined; mark it in the "
            "template with {% generation %}"
        )
    return Span(start, stop + len(ending), index)


def _beginning(messages: Sequence[_Message], index: int, text: Tracked, run: _Run) -> int:
    """Where the generation prompt of an assistant message ends."""
    before = run.text(messages[:index])
    prompt = run.text(messages[:index], prompt=True)
    said = _places(text, index)
    if text.startswith(prompt) and (not said or said[0] >= len(prompt)):
        return len(prompt)
    header = prompt.removeprefix(before)
    origin = origins(text)
    low = 1 + max(np.flatnonzero((origin >= 0) & (origin < index)), default=-1)
    at = text.rfind(header, low, said[0]) if said and prompt.startswith(before) and header else -1
    if at < 0:
        raise TemplateError(
            f"what the chat template writes before assistant message {index} is not what it writes "
            "with add_generation_prompt, so where the answer begins is not defined; mark it in the "
            "template with {% generation %}"
        )
    return at + len(header)


def _places(text: Tracked, message: int) -> list[int]:
    return np.flatnonzero(origins(text) == message).tolist()


def _encode(text: Tracked, spans: Sequence[Span], run: _Run, codec: Codec) -> Rendered:
    turn_of = np.full(len(text), -1, np.int32)
    for start, stop, message in spans:
        turn_of[start:stop] = message
    message_of_char = origins(text)
    ids, messages, turns = [], [], []

    def add(new: np.ndarray, start: int, stop: int) -> None:
        said = message_of_char[start:stop]
        ids.append(new)
        messages.append(np.full(len(new), max(said, default=-1), np.int32))
        turns.append(np.full(len(new), turn_of[start], np.int32))

    at = 0
    for start, stop, word in [*run.controls(text), (len(text), len(text), "")]:
        bounds = _runs(turn_of, at, start)
        pieces = codec.encode_pieces([str.__str__(text)[low:high] for low, high in bounds])
        for (low, high), piece in zip(bounds, pieces, strict=True):
            add(piece, low, high)
        if word:
            add(np.array([codec.control_ids[word]]), start, stop)
        at = stop
    if not ids:
        raise TemplateError("the chat template writes nothing for this conversation")
    return Rendered(
        str.__str__(text),
        np.concatenate(ids).astype(np.uint32),
        np.concatenate(messages),
        np.concatenate(turns),
    )


def _runs(values: np.ndarray, start: int, stop: int) -> list[tuple[int, int]]:
    """The stretches of `start:stop` in which all values are equal."""
    cuts = [start, *(start + 1 + np.flatnonzero(np.diff(values[start:stop]))).tolist(), stop]
    return [(low, high) for low, high in itertools.pairwise(cuts) if high > low]
