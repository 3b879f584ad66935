"""Answers in the form of the OpenAI API, whole or in pieces."""

import dataclasses
import time
import uuid
from collections.abc import Sequence
from typing import Any

from jaxtrain.serving.answers import Piece
from jaxtrain.serving.model import TextModel


@dataclasses.dataclass
class Form:
    """How one request is answered; the two kinds differ in names only.

    Args:
      is_chat: a conversation's answer, else a text's.
    """

    model: TextModel
    name: str  # of the model, as the server calls it
    is_chat: bool
    gives_logprobs: bool

    def __post_init__(self) -> None:
        self._id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._offsets: dict[int, int] = {}

    def whole(self, answers: Sequence[Sequence[Piece]], num_prompt_tokens: int) -> dict[str, Any]:
        """All answers at once."""
        choices = []
        for index, pieces in enumerate(answers):
            piece = Piece(
                "".join(each.text for each in pieces),
                [i for each in pieces for i in each.ids],
                [logprob for each in pieces for logprob in each.logprobs],
                [top for each in pieces for top in each.top],
                pieces[-1].finish,
            )
            content = {"role": "assistant", "content": piece.text}
            said = {"message": content} if self.is_chat else {"text": piece.text}
            choices.append(self._choice(index, piece, said))
        count = sum(len(each.ids) for pieces in answers for each in pieces)
        return self._body(choices, is_piece=False) | {"usage": usage(num_prompt_tokens, count)}

    def begin(self, index: int) -> dict[str, Any] | None:
        """What a streamed answer begins with."""
        if not self.is_chat:
            return None
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._body([choice], is_piece=True)

    def piece(self, index: int, piece: Piece) -> dict[str, Any]:
        """What is new of an answer."""
        said = {"delta": {"content": piece.text}} if self.is_chat else {"text": piece.text}
        return self._body([self._choice(index, piece, said)], is_piece=True)

    def final_usage(self, num_prompt_tokens: int, num_answer_tokens: int) -> dict[str, Any]:
        """The last piece of a stream that is to end with counts."""
        return self._body([], is_piece=True) | {
            "usage": usage(num_prompt_tokens, num_answer_tokens)
        }

    def _body(self, choices: list[Any], *, is_piece: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self.is_chat:
            kind = "chat.completion.chunk" if is_piece else "chat.completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.name,
            "choices": choices,
        }

    def _choice(self, index: int, piece: Piece, said: dict[str, Any]) -> dict[str, Any]:
        logprobs = None
        if self.gives_logprobs:
            logprobs = self._chat_logprobs(piece) if self.is_chat else self._logprobs(index, piece)
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": piece.finish}

    def _chat_logprobs(self, piece: Piece) -> dict[str, Any]:
        content = []
        for place, (token, logprob) in enumerate(zip(piece.ids, piece.logprobs, strict=True)):
            top = piece.top[place] if piece.top else []
            content.append(
                {**self._token(token, logprob), "top_logprobs": [self._token(*t) for t in top]}
            )
        return {"content": content, "refusal": None}

    def _logprobs(self, index: int, piece: Piece) -> dict[str, Any]:
        tokens = [self._text(token) for token in piece.ids]
        offset, offsets = self._offsets.get(index, 0), []
        for token in piece.ids:
            offsets.append(offset)
            offset += len(self.model.tokenizer.decode([token]))
        self._offsets[index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": piece.logprobs,
            "top_logprobs": [
                {self._text(token): logprob for token, logprob in top} for top in piece.top
            ],
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._text(token),
            "logprob": logprob,
            "bytes": list(self._bytes(token)),
        }

    def _text(self, token: int) -> str:
        r"""A token's text; one that is part of a character as the API writes it: `bytes:\xe2`."""
        content = self._bytes(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def _bytes(self, token: int) -> bytes:
        known = self.model.tokenizer.token_bytes
        return self.model.tokenizer.decode([token]).encode() if known is None else known[token]


def usage(num_prompt_tokens: int, num_answer_tokens: int) -> dict[str, int]:
    """The counts of a request; an answer's end token counts."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_answer_tokens,
        "total_tokens": num_prompt_tokens + num_answer_tokens,
    }
