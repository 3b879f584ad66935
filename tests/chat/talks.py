"""Conversations, templates and a tokenizer of bytes that the tests of chat share."""

import numpy as np

from jaxtrain.chat.render import render
from jaxtrain.chat.template import ChatTemplate

MARKED = (
    "<bos>{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% generation %}"
    "{{ m.content }}<|end|>{% endgeneration %}{% else %}<|user|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
FORGETFUL = UNMARKED.replace(
    "<|assistant|>{{ m.content }}",
    "<|assistant|>{{ m.content if loop.last else m.content.split('</think>')[-1] }}",
)
CONTROLS = (
    "<bos>", "<eos>", "<pad>", "<|user|>", "<|assistant|>", "<|end|>", "<think>", "</think>",
)  # fmt: skip


class Bytes:
    """A tokenizer of bytes with control tokens from id 256 on."""

    def __init__(self, controls=CONTROLS):
        self.control_ids = {word: 256 + number for number, word in enumerate(controls)}

    def encode_pieces(self, pieces):
        return [np.frombuffer(piece.encode(), np.uint8).astype(np.uint32) for piece in pieces]

    def words(self, ids) -> str:
        """Ids for a person: control tokens by name."""
        names = {number: word.encode() for word, number in self.control_ids.items()}
        return b"".join(names.get(int(i)) or bytes([i]) for i in ids).decode()


BYTES = Bytes()


def talk(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]


def trained(messages, source, codec=BYTES) -> list[str]:
    """What each assistant message is trained on."""
    result = render(messages, ChatTemplate(source), codec)
    turns = sorted(set(result.turns.tolist()) - {-1})
    return [codec.words(result.ids[result.turns == turn]) for turn in turns]
