"""One template on one conversation and its beginnings: the text, and what in it is a control token.

Control tokens are the template's: what people typed never is one, and a template that mixes the two
beyond telling is refused.

Markers: `<think>…</think>` at the beginning of an assistant's content is how data sets write what a
model thinks. There the two words are their control tokens, if the tokenizer has them. Thoughts that
a message has apart (`reasoning_content`) are put so where the template does not read that.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jaxtrain.chat.template import ChatTemplate, TemplateError
from jaxtrain.chat.tracked import Tracked, join, may_be_control, places, tag_of

ASSISTANT = "assistant"
REASONING = "reasoning_content"
_THINKING = re.compile(r"\s*(<think>).*?(</think>)", re.DOTALL)
_PLAIN_TALK = ({"role": "user", "content": "a"}, {"role": ASSISTANT, "content": "b"})

Message = Mapping[str, Any]


class Codec(Protocol):
    """What rendering needs of a tokenizer."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """The control tokens by the text that templates write for them."""
        ...

    def encode_pieces(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """The ids of a text cut into pieces, with a token boundary at every cut."""
        ...


class TemplateRun:
    """One template on one conversation and its beginnings."""

    def __init__(
        self,
        template: ChatTemplate,
        codec: Codec,
        tools: Sequence[Message] | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self.template, self.tools, self.options = template, tools, options
        literals = sorted(codec.control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, literals)) or r"(?!)")

    def text(self, messages: Sequence[Message], *, prompt: bool = False) -> Tracked:
        """The rendered text.

        Raises:
          TemplateError: where the template fails, or makes markup of what people wrote.
        """
        if REASONING not in self.template.source:  # it would drop them without a word
            messages = [_with_thoughts(message) for message in messages]
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
        said = places(text, 1)
        words = [word for start, _, word in self.controls(text) if said and start > said[-1]]
        return words[0] if words else None

    def _control_words(self, text: Tracked) -> list[str]:
        return [word for _, _, word in self.controls(text)]

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Message] | None, prompt: bool
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


def _with_thoughts(message: Message) -> Message:
    """The message with the thoughts that it has apart at the beginning of its content."""
    thoughts, content = message.get(REASONING), message.get("content") or ""
    if message.get("role") != ASSISTANT or not isinstance(thoughts, str) or not thoughts.strip():
        return message
    if not isinstance(content, str) or _THINKING.match(content):
        return message
    return dict(message) | {"content": f"<think>\n{thoughts.strip()}\n</think>\n\n{content}"}


def _with_markers(message: Message, index: int) -> Message:
    """The message, with the words around an assistant's leading thoughts tagged as markers."""
    content = message.get("content")
    if message.get("role") != ASSISTANT or not isinstance(content, str):
        return message
    thinking = _THINKING.match(content)
    if not thinking:
        return message
    text, marker = tag_of(index), tag_of(index, marker=True)
    pieces, at = [], 0
    for group in (1, 2):
        start, stop = thinking.span(group)
        pieces += [Tracked(content[at:start], text), Tracked(content[start:stop], marker)]
        at = stop
    return dict(message) | {"content": join([*pieces, Tracked(content[at:], text)])}
