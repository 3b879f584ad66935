"""A conversation to ids, with what an assistant says marked token by token: the only path there is.

The template's text is cut at its control tokens and where an assistant's words begin and end; each
piece is encoded as plain text, each control token is one id. So a control token is an id only where
the template wrote it, and what a model is trained on after a prompt is what it would see there:
the ids of a prompt are a prefix of the ids of the whole conversation, if the template is one.

Where an assistant's words are is said by the template ({% generation %}) or found from rendering
the conversation turn by turn: they begin where the generation prompt ends and go through the
control token that ends a plain answer's turn. A template that allows neither is refused with the
reason, and so is one that leaves out what a message says.

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
_PLAIN_TALK = ({"role": "user", "content": "a"}, {"role": ASSISTANT, "content": "b"})

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
    rendered = _encode(text, _spans(messages, text, run), run, codec)
    _check_nothing_left_out(messages, tools, text)
    return rendered


def render_prompt(
    messages: Sequence[_Message],
    template: ChatTemplate,
    codec: Codec,
    *,
    tools: Sequence[_Message] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Rendered:
    """A conversation up to where an assistant answers, for generation.

    Where what was said before cannot be found in a template's text, `turns` leaves it out.

    Raises:
      TemplateError: where the template fails on it.
    """
    run = _Run(template, codec, tools, options)
    text = run.text(messages, prompt=True)
    _check_nothing_left_out(messages, tools, text)
    try:
        spans = _spans(messages, text, run)
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
    return _Run(template, codec, None, options).turn_end()


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
        text = self._render(marked, self.tools, prompt)
        written, given = self._control_words(text), [marked, self.tools]
        defused = self._defused(given)
        if (
            defused != given
            and self._control_words(self._render(defused[0], defused[1], prompt)) != written
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

    def turn_end(self) -> str | None:
        """The control token that ends an assistant's turn."""
        text = self._render(_PLAIN_TALK, None, prompt=False)
        said = _places(text, 1)
        words = [word for start, _, word in self.controls(text) if said and start > said[-1]]
        return words[0] if words else None

    def _control_words(self, text: Tracked) -> list[str]:
        return [word for _, _, word in self.controls(text)]

    def _render(
        self, messages: Sequence[_Message], tools: Sequence[_Message] | None, prompt: bool
    ) -> Tracked:
        return self.template.render(
            messages, tools=tools, add_generation_prompt=prompt, options=self.options
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


def _check_nothing_left_out(
    messages: Sequence[_Message], tools: Sequence[_Message] | None, text: Tracked
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
        said = "".join(plain[place] for place in _places(text, index)) if names else ""
        if any(name not in said and name not in plain for name in names):
            raise TemplateError(
                f"the chat template leaves out the tool calls of message {index}; use one that "
                "writes them"
            )
    if tools and len(messages) not in written:
        raise TemplateError("the chat template leaves out the tools; use one that writes them")


def _function(call: Any) -> Mapping[str, Any]:
    return call.get("function") or call


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
    ending = _through_turn_end(ending, run)
    if stop < start or text[stop : stop + len(ending)] != ending:
        raise TemplateError(
            f"the chat template ends assistant message {index} otherwise when more messages "
            "follow, so what a model should learn to write is not defined; mark it in the "
            "template with {% generation %}"
        )
    return Span(start, stop + len(ending), index)


def _through_turn_end(ending: Tracked, run: _Run) -> Tracked:
    """What follows an answer up to the token that ends the turn; all of it where there is none."""
    controls = list(run.controls(ending))
    if len({word for _, _, word in controls}) > 1:  # the end of a thought or of a call comes first
        end = run.turn_end()
        controls = [each for each in controls if each[2] == end] or controls
    return ending[: controls[0][1]] if controls else ending


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
