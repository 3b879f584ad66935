"""Thoughts are found under every way that templates and rows write them."""

import dataclasses

import numpy as np
import pytest

from jaxtrain.chat.source import chat_template, teach
from jaxtrain.conversations.examples import Maker
from jaxtrain.conversations.forms import Dropped, read
from jaxtrain.conversations.thinking import THINK, mark_thinking
from tests.chats import base_tokenizer

USER = {"role": "user", "content": "2+2?"}
HEAD = "{% for m in messages %}{% if m.role == 'assistant' %}"
TAIL = "{% else %}{{ m.content }}{% endif %}{% endfor %}"
GENERATED = "{% generation %}@{% endgeneration %}"
#: A template that writes `reasoning_content` between the usual words, and one with its own.
USUAL = (
    HEAD
    + GENERATED.replace(
        "@", "<think>\n{{ m.reasoning_content | trim }}\n</think>\n\n{{ m.content }}<|eos|>"
    )
    + TAIL
)
OWN = (
    HEAD
    + GENERATED.replace("@", "[A]{{ m.reasoning_content | trim }}[/A] {{ m.content }}<|eos|>")
    + TAIL
)
#: The generation prompt opens the thought, so that an answer begins inside of it.
OPENED = (
    HEAD
    + "<think>\n"
    + GENERATED.replace("@", "{{ m.reasoning_content }}\n</think>\n\n{{ m.content }}<|eos|>")
    + TAIL
)
APART = {"role": "assistant", "reasoning_content": "two twice\n", "content": "4"}
INSIDE = {"role": "assistant", "content": "<think>two twice</think>\n\n4"}


def make_maker(source, names=(), **settings):
    tokenizer = base_tokenizer().with_special_tokens(list(names)) if names else base_tokenizer()
    if source is None:
        tokenizer, source = teach(tokenizer, "seed")
    return Maker(tokenizer, chat_template(source, tokenizer), **settings)


def trained(maker, *messages):
    """What is trained, without the tokens that end turns."""
    example = maker.example(read({"messages": [USER, *messages]}))
    text = maker.tokenizer.decode(example.ids[example.mask])
    return text.replace("<|end|>", "").replace("<|eos|>", "")


@pytest.mark.parametrize(
    ("source", "answer", "thoughts", "rest"),
    [
        (None, INSIDE, "<think>two twice</think>", "\n\n4"),
        (None, APART, "<think>\ntwo twice\n</think>", "\n\n4"),
        (USUAL, APART, "<think>\ntwo twice\n</think>", "\n\n4"),
        (OWN, APART, "[A]two twice[/A] ", "4"),
        (OPENED, APART, "two twice\n\n</think>", "\n\n4"),
        (None, {"role": "assistant", "content": "4 </think>"}, "", "4 </think>"),
        (None, {"role": "assistant", "content": "<think>4"}, "", "<think>4"),
    ],
)
@pytest.mark.parametrize("names", [(), ("<think>", "</think>")])
def test_thoughts_are_trained_or_read_only(source, answer, thoughts, rest, names):
    """Whether the words around them are control tokens or text."""
    whole, masked = (make_maker(source, names, thinking=which) for which in ("train", "mask"))
    assert trained(whole, answer) == thoughts + rest
    assert trained(masked, answer) == rest


def test_thoughts_are_those_of_each_turn_and_of_no_one_else():
    messages = [{"role": "user", "content": "<think>no</think>"}, INSIDE, USER, APART]
    masked = make_maker(None, thinking="mask")
    assert trained(masked, *messages) == "\n\n4\n\n4"
    whole = make_maker(None).rendered(
        read({"messages": messages}), (0, 1, 0, 1), mark=mark_thinking
    )
    edges = np.flatnonzero(np.diff((whole.marks == THINK).astype(int)))
    assert len(edges) == 4


def test_ids_are_the_same_whether_thoughts_are_trained_or_not():
    conversation = read({"messages": [USER, INSIDE]})
    first, second = (
        make_maker(None, thinking=which).example(conversation) for which in ("train", "mask")
    )
    np.testing.assert_array_equal(first.ids, second.ids)


def test_a_row_whose_thoughts_are_longer_than_allowed_is_dropped():
    length = len("<think>two twice</think>")
    conversation = read({"messages": [USER, INSIDE, USER, INSIDE]})
    kept = make_maker(None, thinking=length).example(conversation)
    assert kept.mask.sum() == make_maker(None).example(conversation).mask.sum()
    with pytest.raises(Dropped, match="thoughts too long"):
        make_maker(None, thinking=length - 1).example(conversation)
    read_only = read({"messages": [USER, {**INSIDE, "weight": 0}, USER, {**APART, "content": "4"}]})
    last = dataclasses.replace(make_maker(None), thinking=length + 2).example(read_only)
    assert last.mask.any()


def test_a_row_of_nothing_but_thoughts_has_nothing_to_train():
    nothing = {"role": "assistant", "content": "<think>hm</think>"}
    masked = make_maker(HEAD + GENERATED.replace("@", "{{ m.content }}") + TAIL, thinking="mask")
    with pytest.raises(Dropped, match="nothing of it would be trained"):
        masked.example(read({"messages": [USER, nothing]}))


def test_weights_of_a_message_stay_where_its_thoughts_are_masked():
    heavy = {**INSIDE, "weight": 2.5}
    example = make_maker(None, thinking="mask").example(read({"messages": [USER, heavy]}))
    assert example.weights is not None
    assert set(example.weights[example.mask].tolist()) == {2.5}
    assert not example.weights[~example.mask].any()
