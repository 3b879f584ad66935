"""Answers of a model that is loaded here to rows of prompts: how they are drawn, as one record."""

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from jaxtrain.decode.draft import Draft
from jaxtrain.decode.engine import Engine
from jaxtrain.decode.sampling import Sampling
from jaxtrain.serving.answers import Ask, answer_all, chat_prompt, text_prompt
from jaxtrain.serving.model import TextModel

K = TypeVar("K", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """All that decides what a model answers to a prompt."""

    sampling: Sampling
    num_samples: int  # answers to each prompt, of seeds sampling.seed, sampling.seed + 1, …
    max_new_tokens: int
    stop: tuple[str, ...]
    chat: bool  # a `prompt` is a user's message
    chat_template_kwargs: Mapping[str, Any] | None
    max_len: int  # tokens of prompt and answer together
    num_slots: int

    def recipe(self) -> dict[str, Any]:
        """For the record of an answer file."""
        return {
            "sampling": dataclasses.asdict(self.sampling)
            | {"max_new_tokens": self.max_new_tokens, "stop": list(self.stop)},
            "num_samples": self.num_samples,
            "chat": self.chat,
            "chat_template_kwargs": self.chat_template_kwargs,
            "max_len": self.max_len,
            "num_slots": self.num_slots,
        }

    def asks(self, model: TextModel, row: Mapping[str, Any]) -> list[Ask]:
        """What to ask for a row with `prompt` or `messages`.

        Raises:
          ValueError: where it is malformed, or leaves an answer no room.
        """
        variables = row.get("chat_template_kwargs", self.chat_template_kwargs)
        if "messages" in row:
            ids = chat_prompt(model, row["messages"], row.get("tools"), variables)
        elif self.chat:
            message = {"role": "user", "content": row["prompt"]}
            ids = chat_prompt(model, [message], None, variables)
        else:
            ids = text_prompt(model, row["prompt"])
        if not 1 <= len(ids) < self.max_len:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, but must have from 1 to {self.max_len - 1}: "
                f"prompt and answer share --max_len={self.max_len}"
            )
        seed = self.sampling.seed
        return [
            Ask(
                ids,
                self.max_new_tokens,
                dataclasses.replace(self.sampling, seed=(seed + number) % 2**32),
                self.stop,
                goes_on=not (self.chat or "messages" in row),
            )
            for number in range(self.num_samples)
        ]

    def engine(self, model: TextModel, asks: Sequence[Ask], draft: Draft | None = None) -> Engine:
        """As large as these need: a cache that nobody fills costs time.

        Args:
          draft: makes it faster and decides nothing.
        """
        longest = max((len(ask.ids) for ask in asks), default=1) + self.max_new_tokens
        slots = max(1, min(len(asks), self.num_slots))
        max_len = max(2, min(longest, self.max_len))
        return model.engine(max_len=max_len, num_slots=slots, draft=draft)


def whole_answers(
    model: TextModel, engine: Engine, asks: Mapping[K, Ask]
) -> Iterator[tuple[K, dict[str, Any]]]:
    """(key, answer) of each as it is finished."""
    keys = list(asks)
    parts: dict[int, list] = {number: [] for number in range(len(keys))}
    for number, piece in answer_all(model, engine, asks.values()):
        parts[number].append(piece)
        if piece.finish is None:
            continue
        pieces = parts.pop(number)
        yield (
            keys[number],
            {
                "text": "".join(each.text for each in pieces),
                "finish": piece.finish,
                "num_tokens": sum(len(each.ids) for each in pieces),
                "logprob_sum": sum(sum(each.logprobs) for each in pieces),
            },
        )
