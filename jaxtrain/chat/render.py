"""A conversation to ids, with what an assistant says marked token by token: the only path there is.

The template's text is cut at its control tokens and where an assistant's words begin and end; each
piece is encoded as plain text, each control token is one id. So a control token is an id only where
the template wrote it, and what a model is trained on after a prompt is what it would see there:
the ids of a prompt are a prefix of the ids of the whole conversation, if the template is one.

Where an assistant's words are is found in `spans.py`. A template that does not tell is refused with
the reason, and so is one that leaves out what a message says.

Whoever needs to tell parts of an answer apart (its thoughts, its steps) gives a `Mark`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain.chat.spans import Span, find_spans
from jaxtrain.chat.template import ChatTemplate, TemplateError
from jaxtrain.chat.template_run import ASSISTANT, Codec, Message, TemplateRun
from jaxtrain.chat.tracked import Tracked, origins, places


class Rendered(NamedTuple):
    """A conversation as a model reads it; the arrays have one entry for each token."""

    text: str
    ids: np.ndarray  # uint32
    messages: np.ndarray  # int32: the message that the piece of text is of; -1: the template's
    turns: np.ndarray  # int32: the assistant message that says it, its end token included; or -1
    marks: np.ndarray  # int32: what the caller's `Mark` says; 0 without one


#: (messages, their text, where assistants speak) → a number for each character of the text (int32).
Mark = Callable[[Sequence[Message], Tracked, Sequence[Span]], np.ndarray]


def render(
    messages: Sequence[Message],
    template: ChatTemplate,
    codec: Codec,
    *,
    tools: Sequence[Message] | None = None,
    options: Mapping[str, Any] | None = None,
    mark: Mark | None = None,
) -> Rendered:
    """A whole conversation, for training and scoring.

    Args:
      mark: tells parts of the text apart; a token ends wherever its numbers change.

    Raises:
      TemplateError: where the template fails on it, or what the assistant says cannot be found.
    """
    run = TemplateRun(template, codec, tools, options)
    text = run.text(messages)
    spans = find_spans(messages, text, run)
    marks = None if mark is None else mark(messages, text, spans)
    rendered = _encode(text, spans, run, codec, marks)
    _check_nothing_left_out(messages, tools, text)
    return rendered


def render_prompt(
    messages: Sequence[Message],
    template: ChatTemplate,
    codec: Codec,
    *,
    tools: Sequence[Message] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Rendered:
    """A conversation up to where an assistant answers, for generation.

    Where what was said before cannot be found in a template's text, `turns` leaves it out.

    Raises:
      TemplateError: where the template fails on it.
    """
    run = TemplateRun(template, codec, tools, options)
    text = run.text(messages, prompt=True)
    _check_nothing_left_out(messages, tools, text)
    try:
        spans = find_spans(messages, text, run)
    except TemplateError:  # in what was said before: nothing of it is trained here
        spans = []
    return _encode(text, spans, run, codec)


def turn_end(
    template: ChatTemplate, codec: Codec, options: Mapping[str, Any] | None = None
) -> str | None:
    """The control token that ends an assistant's turn, None where none does; read off an answer.

    Raises:
      TemplateError: where the template fails on a plain question and answer.
    """
    return TemplateRun(template, codec, None, options).turn_end()


def rewrites_history(
    messages: Sequence[Message],
    template: ChatTemplate,
    codec: Codec,
    *,
    tools: Sequence[Message] | None = None,
    options: Mapping[str, Any] | None = None,
) -> bool:
    """Whether an earlier assistant message reads otherwise once more messages follow.

    True for templates that drop thoughts from all turns but the last: what is trained in a whole
    conversation is then not what the model is to write when that turn is its answer.
    """
    run = TemplateRun(template, codec, tools, options)
    text = run.text(messages)
    return not all(
        text.startswith(run.text(messages[: index + 1]))
        for index, message in enumerate(messages)
        if message["role"] == ASSISTANT
    )


def _check_nothing_left_out(
    messages: Sequence[Message], tools: Sequence[Message] | None, text: Tracked
) -> None:
    """Refuses a template that does not write what it was given, but for thoughts and blanks.

    Raises:
      TemplateError: names the message.
    """
    plain, written = str.__str__(text), set(origins(text).tolist())
    for index, message in enumerate(messages):
        role, content = message["role"], str(message.get("content") or "").strip()
        is_written = role == ASSISTANT or index in written or content in plain
        if content and not is_written:
            raise TemplateError(
                f"the chat template leaves out message {index} ({role}); leave it out yourself, or "
                "use a template that writes it"
            )
        names = [str(_function(call).get("name")) for call in message.get("tool_calls") or ()]
        said = "".join(plain[place] for place in places(text, index)) if names else ""
        if any(name not in said and name not in plain for name in names):
            raise TemplateError(
                f"the chat template leaves out the tool calls of message {index}; use one that "
                "writes them"
            )
    if tools and len(messages) not in written:
        raise TemplateError("the chat template leaves out the tools; use one that writes them")


def _function(call: Any) -> Mapping[str, Any]:
    return call.get("function") or call


def _encode(
    text: Tracked,
    spans: Sequence[Span],
    run: TemplateRun,
    codec: Codec,
    marks: np.ndarray | None = None,
) -> Rendered:
    turn_of = np.full(len(text), -1, np.int32)
    for start, stop, message in spans:
        turn_of[start:stop] = message
    mark_of = np.zeros(len(text), np.int32) if marks is None else marks
    is_border = (np.diff(turn_of) != 0) | (np.diff(mark_of) != 0)
    message_of_char = origins(text)
    ids, messages, turns, marked = [], [], [], []

    def add(new: np.ndarray, start: int, stop: int) -> None:
        said = message_of_char[start:stop]
        ids.append(new)
        messages.append(np.full(len(new), said.max(initial=-1), np.int32))
        turns.append(np.full(len(new), turn_of[start], np.int32))
        marked.append(np.full(len(new), mark_of[start], np.int32))

    at = 0
    for start, stop, word in [*run.controls(text), (len(text), len(text), "")]:
        bounds = _runs(is_border, at, start)
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
        np.concatenate(marked),
    )


def _runs(is_border: np.ndarray, start: int, stop: int) -> list[tuple[int, int]]:
    """The stretches of `start:stop` without a border (after character i) inside."""
    inside = is_border[start : max(stop - 1, start)]
    cuts = [start, *(start + 1 + np.flatnonzero(inside)).tolist(), stop]
    return [(low, high) for low, high in itertools.pairwise(cuts) if high > low]
