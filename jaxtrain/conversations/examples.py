"""A conversation as ids with a mask, within a length: what one document of a store is.

Which messages are trained is decided on the whole conversation, and a cut takes ids and mask alike.
A conversation that is too long loses whole turns first, at the end that the cut is on, and is
rendered anew; only where its last (or first) exchange alone is too long are its ids cut. Nothing is
put in place of what was cut away: no end token, no BOS.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.codec import TokenizerCodec
from jaxtrain.chat.render import Rendered, render, rewrites_history
from jaxtrain.chat.template import ChatTemplate, TemplateError
from jaxtrain.conversations.forms import BadRow, Conversation
from jaxtrain.tokenizer.tokenizer import Tokenizer

DROP, RIGHT, LEFT = "drop", "right", "left"
CUTS: Final = (DROP, RIGHT, LEFT)
ALL, LAST = "all", "last"
TRAINED: Final = (ALL, LAST)
NEVER_CUT: Final = ("system", "developer")  # what stands at the beginning, in a cut on the left


class Dropped(ValueError):
    """A conversation in order that is left out all the same; `reason` is one of few."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Example(NamedTuple):
    """One conversation as it is trained on; the arrays have one entry for each token."""

    ids: np.ndarray  # uint32
    mask: np.ndarray  # bool: trained
    roles: tuple[str | None, ...]  # who says it; None: the template
    num_text_bytes: int
    cut: str | None = None  # "turns" or "tokens", where it was too long


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes examples with one tokenizer and one template."""

    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: only plain texts can be made
    max_len: int | None = None  # tokens; None: as long as they are
    too_long: str = DROP  # one of CUTS
    train: str = ALL  # one of TRAINED: every assistant message, or the last alone
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
        kept = slice(self.max_len) if self.too_long == RIGHT else slice(-self.max_len, None)
        return example._replace(
            ids=example.ids[kept],
            mask=example.mask[kept],
            roles=example.roles[kept],
            cut="tokens",
        )

    def _shorter(self, conversation: Conversation, wanted: Sequence[bool]) -> Iterator[Example]:
        """The conversation with ever fewer turns."""
        messages = conversation.messages
        if self.too_long == RIGHT:
            for stop in range(len(messages) - 1, 0, -1):
                if wanted[stop - 1]:
                    kept = conversation._replace(messages=messages[:stop])
                    yield self._rendered(kept, wanted[:stop])
            return
        head = next(
            (at for at, message in enumerate(messages) if message["role"] not in NEVER_CUT), 0
        )
        for start in range(head + 1, len(messages)):
            if messages[start]["role"] == "user" and any(wanted[start:]):
                kept = conversation._replace(messages=messages[:head] + messages[start:])
                yield self._rendered(kept, [*wanted[:head], *wanted[start:]])

    def _rendered(self, conversation: Conversation, wanted: Sequence[bool]) -> Example:
        if self.template is None:
            raise ValueError(
                "there is no chat template for conversations; name one with --chat_template: "
                f"{', '.join(BUILTIN)}, or a file"
            )
        try:
            rendered = render(
                conversation.messages, self.template, self.codec, tools=conversation.tools
            )
        except TemplateError as error:
            raise BadRow("refused by the template", str(error)) from error
        is_wanted = np.array([*wanted, False])  # -1, the template alone, is the last
        return Example(
            rendered.ids,
            is_wanted[rendered.turns],
            _roles(rendered, conversation),
            len(rendered.text.encode()),
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


def _wanted(conversation: Conversation, train: str) -> list[bool]:
    """Of each message, whether it is trained."""
    wanted = list(conversation.trained)
    if train == LAST:
        last = max(
            (at for at, m in enumerate(conversation.messages) if m["role"] == "assistant"),
            default=-1,
        )
        wanted = [flag and at == last for at, flag in enumerate(wanted)]
    for message, flag in zip(conversation.messages, wanted, strict=True):
        if flag and not message["content"].strip() and not message.get("tool_calls"):
            raise BadRow("empty answer", "trains an assistant message that says nothing")
    return wanted


def _roles(rendered: Rendered, conversation: Conversation) -> tuple[str | None, ...]:
    names = [message["role"] for message in conversation.messages] + ["tools", None]
    return tuple(names[index] for index in rendered.messages.tolist())
