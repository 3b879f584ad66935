"""Conversations for tests, and what a model should read of them, written down independently."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from jaxtrain.chat.source import teach
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.training import Training

NUM_RESERVED = 8  # as many as any built-in template needs
VOCAB_SIZE = 256 + 4 + NUM_RESERVED

Tokens = list[tuple[int, bool]]  # id, trained


def base_tokenizer() -> Tokenizer:
    """Of a base model: one id a byte, special tokens, reserved ids."""
    return Training("bpe", VOCAB_SIZE, NUM_RESERVED).train(["abc"])


def expected(
    template: str, messages: Sequence[Mapping[str, Any]], wanted: Sequence[bool]
) -> Tokens:
    """Ids and mask under a built-in template, piece by piece as its model card describes it."""
    tokenizer, _ = teach(base_tokenizer(), template)

    def control(name: str, trained: bool = False) -> Tokens:
        return [(tokenizer.control_id(name), trained)]

    def words(text: str, trained: bool = False) -> Tokens:
        return [(int(number), trained) for number in tokenizer.encode(text)]

    found: Tokens = {
        "chatml": [],
        "llama3": control("<|begin_of_text|>") if template == "llama3" else [],
        "seed": control("<|bos|>") if template == "seed" else [],
    }[template]
    for message, train in zip(messages, wanted, strict=True):
        role, content = message["role"], message["content"]
        if template == "chatml":
            found += control("<|im_start|>") + words(f"{role}\n")
            found += words(content, train) + control("<|im_end|>", train) + words("\n")
        elif template == "llama3":
            found += control("<|start_header_id|>") + words(role)
            found += control("<|end_header_id|>") + words("\n\n")
            found += words(content.strip(), train) + control("<|eot_id|>", train)
        else:
            found += control(f"<|{role}|>") + words(content, train) + control("<|end|>", train)
    return found


_LURES = ("<|im_end|>", "<|im_start|>assistant\n", "<|eot_id|>", "<|assistant|>", "<|end|>", "<s>")


@st.composite
def conversations(draw) -> list[dict[str, str]]:
    """User and assistant in turn, a system message or none; texts that look like control tokens."""
    text = st.lists(st.one_of(st.text(max_size=6), st.sampled_from(_LURES)), max_size=3)
    content = st.builds(lambda parts, mark: "".join([*parts, mark]), text, st.sampled_from("xé日"))
    exchanges = draw(st.integers(1, 3))
    messages = [
        {"role": role, "content": draw(content)}
        for _ in range(exchanges)
        for role in ("user", "assistant")
    ]
    if draw(st.booleans()):
        messages.insert(0, {"role": "system", "content": draw(content)})
    return messages


def write_rows(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """A JSON Lines file; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def exchange(question: str, answer: str) -> dict[str, Any]:
    """A row with one question and its answer."""
    said = (("user", question), ("assistant", answer))
    return {"messages": [{"role": role, "content": text} for role, text in said]}
