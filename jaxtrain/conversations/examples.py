"""A conversation as ids with a mask, within a length: what one document of a store is.

Which messages are trained is decided on the whole conversation, and a cut takes ids and mask alike.
A conversation that is too long loses whole turns first, at the end that the cut is on, and is
rendered anew; only where its last (or first) exchange alone is too long are its ids cut. Nothing is
put in place of what was cut away: no end token, no BOS.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.codec import TokenizerCodec
from jaxtrain.chat.render import Mark, Rendered, render, rewrites_history
from jaxtrain.chat.template import ChatTemplate, TemplateError
from jaxtrain.conversations.forms import BadRow, Conversation, Dropped, Message
from jaxtrain.conversations.thinking import THINK, mark_thinking
from jaxtrain.tokenizer.tokenizer import Tokenizer

DROP, RIGHT, LEFT = "drop", "right", "left"
CUTS: Final = (DROP, RIGHT, LEFT)
ALL, LAST = "all", "last"
TRAINED: Final = (ALL, LAST)
#: What becomes of an assistant's thoughts: trained as what it says, or read only.
THINKING: Final = ("train", "mask")
NEVER_CUT: Final = ("system", "developer")  # what stands at the beginning, in a cut on the left


class Example(NamedTuple):
    """One conversation as it is trained on; the arrays have one entry for each token."""

    ids: np.ndarray  # uint32
    mask: np.ndarray  # bool: trained
    roles: tuple[str | None, ...]  # who says it; None: the template
    num_text_bytes: int
    cut: str | None = None  # "turns" or "tokens", where it was too long
    weights: np.ndarray | None = None  # float32: how much; None: as the mask says, all alike
    marks: np.ndarray | None = None  # int32: what `chat.render.Mark` said; None: nothing was marked

    def within(self, kept: slice) -> "Example":
        """Those of its tokens alone."""
        return self._replace(
            ids=self.ids[kept],
            mask=self.mask[kept],
            roles=self.roles[kept],
            cut="tokens",
            weights=None if self.weights is None else self.weights[kept],
            marks=None if self.marks is None else self.marks[kept],
        )


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes examples with one tokenizer and one template."""

    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: only plain texts can be made
    max_len: int | None = None  # tokens; None: as long as they are
    too_long: str = DROP  # one of CUTS
    train: str = ALL  # one of TRAINED: every assistant message, or the last alone
    thinking: str | int = THINKING[0]  # one of THINKING, or the most tokens of a turn's thoughts
    codec: TokenizerCodec = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", TokenizerCodec(self.tokenizer))

    def example(self, conversation: Conversation) -> Example:
        """The example of a conversation.

        Raises:
          BadRow: where the template refuses the conversation.
          Dropped: where it is too long, or nothing of it would be trained, or all of it.
        """
        if conversation.text is not None:
            example, shorter = self._plain_text(conversation.text), iter(())
        else:
            wanted = _wanted(conversation, self.train)
            if not any(wanted):
                raise Dropped("no assistant message to train")
            example = self._rendered(conversation, wanted)
            if example.mask.all():
                raise Dropped("all of it would be trained: it has no prompt")
            shorter = self._shorter(conversation, wanted)
        if self._is_too_long(example):
            example = self._fitted(example, shorter)
        if not example.mask[1:].any():
            raise Dropped(
                "nothing of it would be trained"
                if example.cut is None
                else "too long: nothing trained would be left"
            )
        return example

    def rewrites_history(self, conversation: Conversation) -> bool:
        """Whether an earlier turn reads otherwise here than when it was the model's to write."""
        roles = [message["role"] for message in conversation.messages]
        if self.template is None or roles.count("assistant") < 2:
            return False
        try:
            return rewrites_history(
                conversation.messages, self.template, self.codec, tools=conversation.tools
            )
        except TemplateError:  # its beginning alone is no conversation to this template
            return False

    def _is_too_long(self, example: Example) -> bool:
        return self.max_len is not None and len(example.ids) > self.max_len

    def _fitted(self, example: Example, shorter: Iterator[Example]) -> Example:
        """Within max_len: the first of `shorter` that fits, or its ids cut."""
        if self.too_long == DROP:
            raise Dropped("too long")
        for fewer_turns in shorter:
            if not self._is_too_long(fewer_turns) and fewer_turns.mask[1:].any():
                return fewer_turns._replace(cut="turns")
            example = fewer_turns
        assert self.max_len is not None
        return example.within(
            slice(self.max_len) if self.too_long == RIGHT else slice(-self.max_len, None)
        )

    def _shorter(self, conversation: Conversation, wanted: Sequence[float]) -> Iterator[Example]:
        """The conversation with ever fewer turns."""
        messages = conversation.messages
        if self.too_long == RIGHT:
            for stop in range(len(messages) - 1, 0, -1):
                if wanted[stop - 1]:
                    kept = conversation._replace(messages=messages[:stop])
                    yield self._rendered(kept, wanted[:stop])
            return
        for head, start in turns_to_cut(messages):
            if any(wanted[start:]):
                kept = conversation._replace(messages=messages[:head] + messages[start:])
                yield self._rendered(kept, [*wanted[:head], *wanted[start:]])

    def _rendered(self, conversation: Conversation, wanted: Sequence[float]) -> Example:
        if self.thinking == THINKING[0]:
            return self.rendered(conversation, wanted)
        example = self.rendered(conversation, wanted, mark_thinking)
        thoughts = example.marks == THINK
        if self.thinking == THINKING[1]:
            weights = None if example.weights is None else np.where(thoughts, 0, example.weights)
            return example._replace(mask=example.mask & ~thoughts, weights=weights)
        if _longest_run(thoughts & example.mask) > int(self.thinking):
            raise Dropped("thoughts too long")
        return example

    def answer(
        self,
        prompt: Sequence[Message],
        answer: str | Sequence[Message],
        tools: list[Any] | None = None,
        mark: Mark | None = None,
    ) -> Example:
        """A prompt and one answer to it, which alone is trained, however long they are.

        The ids are those of a store of answers, and so what a reward model scores.

        Args:
          prompt: messages as `forms.normalized` gives them; so are those of an answer.

        Raises:
          BadRow: where the template refuses it, or the answer says nothing.
        """
        if isinstance(answer, str):
            answer = [{"role": "assistant", "content": answer}]
        said = [message["role"] == "assistant" for message in answer]
        if any(is_said and says_nothing(m) for is_said, m in zip(said, answer, strict=True)):
            raise BadRow("empty answer", "has an answer that says nothing")
        weights = (*(0.0 for _ in prompt), *map(float, said))
        return self.rendered(Conversation([*prompt, *answer], weights, tools), weights, mark)

    def rendered(
        self, conversation: Conversation, weights: Sequence[float], mark: Mark | None = None
    ) -> Example:
        """The whole conversation, however long, each message trained as much as its weight says.

        Raises:
          BadRow: where the template refuses the conversation.
        """
        if self.template is None:
            raise ValueError(
                "there is no chat template for conversations; name one with --chat_template: "
                f"{', '.join(BUILTIN)}, or a file"
            )
        try:
            rendered = render(
                conversation.messages,
                self.template,
                self.codec,
                tools=conversation.tools,
                mark=mark,
            )
        except TemplateError as error:
            raise BadRow("refused by the template", str(error)) from error
        # -1, the template alone, is the last.
        per_token = np.array([*weights, 0], np.float32)[rendered.turns]
        return Example(
            rendered.ids,
            per_token > 0,
            _roles(rendered, conversation),
            len(rendered.text.encode()),
            weights=None if set(weights) <= {0, 1} else per_token,
            marks=None if mark is None else rendered.marks,
        )

    def _plain_text(self, text: str) -> Example:
        """A text between BOS and EOS, as in a store of documents; BOS alone is not trained."""
        ends = self.tokenizer.special_ids
        before = [ends["bos"]] if "bos" in ends else []
        after = [ends["eos"]] if "eos" in ends else []
        body = self.tokenizer.encode(text)
        ids = np.concatenate([before, body, after]).astype(np.uint32)
        mask = np.ones(len(ids), bool)
        mask[: len(before)] = False
        roles = (*(None for _ in before), *("text" for _ in body), *(None for _ in after))
        return Example(ids, mask, roles, len(text.encode()))


def turns_to_cut(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Where turns can be cut on the left: (the head's end, where what is kept begins again)."""
    head = next((at for at, message in enumerate(messages) if message["role"] not in NEVER_CUT), 0)
    for start in range(head + 1, len(messages)):
        if messages[start]["role"] == "user":
            yield head, start


def _wanted(conversation: Conversation, train: str) -> list[float]:
    """Of each message, how much it is trained."""
    wanted = list(conversation.weights)
    if train == LAST:
        last = max(
            (at for at, m in enumerate(conversation.messages) if m["role"] == "assistant"),
            default=-1,
        )
        wanted = [weight * (at == last) for at, weight in enumerate(wanted)]
    for message, weight in zip(conversation.messages, wanted, strict=True):
        if weight and says_nothing(message):
            raise BadRow("empty answer", "trains an assistant message that says nothing")
    return wanted


def says_nothing(message: Message) -> bool:
    """Whether a message has neither words nor calls of tools."""
    return not message["content"].strip() and not message.get("tool_calls")


def _longest_run(values: np.ndarray) -> int:
    edges = np.flatnonzero(np.diff(values.astype(np.int8), prepend=0, append=0))
    return int(np.diff(edges)[::2].max(initial=0))


def _roles(rendered: Rendered, conversation: Conversation) -> tuple[str | None, ...]:
    names = [message["role"] for message in conversation.messages] + ["tools", None]
    return tuple(names[index] for index in rendered.messages.tolist())
