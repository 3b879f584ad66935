"""Ids and masks against ones written down independently, and every way of cutting them."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.render import render_prompt
from jaxtrain.chat.source import chat_template, teach
from jaxtrain.conversations.examples import Maker
from jaxtrain.conversations.forms import BadRow, Conversation, Dropped, read
from tests.chats import base_tokenizer, conversations, exchange, expected


def make_maker(template, **settings):
    tokenizer, source = teach(base_tokenizer(), template)
    return Maker(tokenizer, chat_template(source, tokenizer), **settings)


MAKERS = {name: make_maker(name) for name in BUILTIN}
TALK = {
    "messages": [
        {"role": "system", "content": "s"},
        *exchange("one", "1")["messages"],
        *exchange("two", "22")["messages"],
        *exchange("three", "333")["messages"],
    ]
}


def tokens(example):
    return list(zip(example.ids.tolist(), example.mask.tolist(), strict=True))


def text(maker, example):
    return maker.tokenizer.decode(example.ids)


@settings(max_examples=25)
@given(messages=conversations(), flags=st.lists(st.booleans(), min_size=7, max_size=7))
@pytest.mark.parametrize("template", BUILTIN)
@pytest.mark.parametrize("train", ["all", "last"])
def test_ids_and_mask_are_the_independent_ones(template, train, messages, flags):
    """Lures that read like control tokens are among the texts, and move nothing."""
    last = len(messages) - 1
    wanted = [
        message["role"] == "assistant" and flag and (train == "all" or at == last)
        for at, (message, flag) in enumerate(zip(messages, flags, strict=False))
    ]
    said = [
        {**message, "train": flag} if message["role"] == "assistant" else message
        for message, flag in zip(messages, flags, strict=False)
    ]
    maker = dataclasses.replace(MAKERS[template], train=train)
    if not any(wanted):
        with pytest.raises(Dropped, match="no assistant message to train"):
            maker.example(read({"messages": said}))
        return
    example = maker.example(read({"messages": said}))
    assert tokens(example) == expected(template, messages, wanted)
    assert len(example.roles) == len(example.ids)


@pytest.mark.parametrize("template", BUILTIN)
def test_a_prompt_in_use_is_a_prefix_of_what_was_trained(template):
    maker, conversation = MAKERS[template], read(TALK)
    example = maker.example(conversation)
    for stop, message in enumerate(conversation.messages):
        if message["role"] != "assistant":
            continue
        prompt = render_prompt(conversation.messages[:stop], maker.template, maker.codec).ids
        np.testing.assert_array_equal(example.ids[: len(prompt)], prompt)
        assert not example.mask[len(prompt) - 1]
        assert example.mask[len(prompt)]


def test_what_ends_a_turn_is_trained_though_it_is_not_eos():
    for name, maker in MAKERS.items():
        end = maker.tokenizer.control_id(BUILTIN[name].control_tokens[0])
        example = maker.example(read(TALK))
        assert example.mask[example.ids == end].tolist() == [False] * 2 + [True] + [False, True] * 2
        assert end != maker.tokenizer.special_ids["eos"]


@settings(max_examples=25)
@given(messages=conversations(), weights=st.lists(st.sampled_from([0, 0.5, 1, 3]), min_size=7))
@pytest.mark.parametrize("template", BUILTIN)
def test_every_token_of_a_message_has_the_messages_weight(template, messages, weights):
    wanted = [
        weight if message["role"] == "assistant" else 0
        for message, weight in zip(messages, weights, strict=False)
    ]
    hypothesis.assume(any(wanted))
    row = [{**message, "weight": each} for message, each in zip(messages, wanted, strict=True)]
    example = MAKERS[template].example(read({"messages": row}))
    assert tokens(example) == expected(template, messages, [weight > 0 for weight in wanted])
    if set(wanted) <= {0, 1}:
        assert example.weights is None
        return
    assert example.weights is not None
    for value in set(wanted) - {0}:
        alone = expected(template, messages, [weight == value for weight in wanted])
        assert (example.weights == np.float32(value)).tolist() == [flag for _, flag in alone]


def test_an_answer_alone_is_the_example_of_its_conversation():
    maker = MAKERS["chatml"]
    whole = dataclasses.replace(maker, train="last").example(read(TALK))
    alone = maker.answer(TALK["messages"][:-1], TALK["messages"][-1]["content"])
    assert tokens(alone) == tokens(whole)
    assert alone.roles == whole.roles
    with pytest.raises(BadRow, match="says nothing"):
        maker.answer(TALK["messages"][:-1], " ")


# --- too long ---


def length(record):
    return len(MAKERS["chatml"].example(read(record)).ids)


def test_a_long_conversation_is_dropped_unless_told_otherwise():
    with pytest.raises(Dropped, match=r"^too long$"):
        make_maker("chatml", max_len=length(TALK) - 1).example(read(TALK))
    assert make_maker("chatml", max_len=length(TALK)).example(read(TALK)).cut is None


def test_a_cut_on_the_right_takes_whole_turns():
    maker = make_maker("chatml", max_len=length(TALK) - 1, too_long="right")
    example = maker.example(read(TALK))
    shorter = {"messages": TALK["messages"][:-2]}
    assert tokens(example) == tokens(MAKERS["chatml"].example(read(shorter)))
    assert example.cut == "turns"


def test_a_cut_on_the_left_takes_whole_turns_and_keeps_the_system_message():
    maker = make_maker("chatml", max_len=length(TALK) - 1, too_long="left")
    example = maker.example(read(TALK))
    shorter = {"messages": TALK["messages"][:1] + TALK["messages"][3:]}
    assert tokens(example) == tokens(MAKERS["chatml"].example(read(shorter)))
    assert example.cut == "turns"


@settings(max_examples=30)
@given(max_len=st.integers(2, 80))
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_cut_is_within_the_length_and_trains_what_was_chosen_before_it(side, max_len):
    maker = make_maker("seed", max_len=max_len, too_long=side)
    whole = MAKERS["seed"].example(read(TALK))
    try:
        example = maker.example(read(TALK))
    except Dropped:
        assert side == "right"
        assert max_len <= len(
            render_prompt(read(TALK).messages[:2], maker.template, maker.codec)[1]
        )
        return
    assert len(example.ids) == len(example.mask) == len(example.roles) <= max_len
    assert example.mask[1:].any()
    trained = example.ids[example.mask].tolist()
    all_trained = whole.ids[whole.mask].tolist()
    cut = len(trained)
    assert trained == (all_trained[-cut:] if side == "left" else all_trained[:cut])


def test_where_only_the_last_is_trained_a_cut_on_the_right_trains_no_other():
    maker = make_maker("chatml", max_len=length(TALK) - 15, too_long="right", train="last")
    with pytest.raises(Dropped, match="too long: nothing trained would be left"):
        maker.example(read(TALK))


def test_one_long_exchange_is_cut_by_tokens_and_no_end_is_invented():
    row = exchange("hi", "abcdefghij")
    for side, kept in (("right", slice(12)), ("left", slice(-12, None))):
        whole = MAKERS["seed"].example(read(row))
        example = make_maker("seed", max_len=12, too_long=side).example(read(row))
        assert tokens(example) == tokens(whole)[kept]
        assert example.cut == "tokens"


# --- what is left out ---


def test_a_conversation_that_is_all_answer_is_dropped():
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    tokenizer = base_tokenizer()
    maker = Maker(tokenizer, chat_template(source, tokenizer))
    with pytest.raises(Dropped, match="all of it would be trained"):
        maker.example(read({"messages": [{"role": "assistant", "content": "a"}]}))


@pytest.mark.parametrize(
    ("row", "error", "reason"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, Dropped, "no assistant message"),
        (exchange("a", " "), BadRow, "says nothing"),
    ],
)
def test_a_row_with_nothing_to_learn_is_left_out_by_a_reason(row, error, reason):
    with pytest.raises(error, match=reason):
        MAKERS["chatml"].example(read(row))


def test_a_template_that_fails_is_the_rows_fault():
    tokenizer = base_tokenizer()
    maker = Maker(tokenizer, chat_template("{{ raise_exception('no system') }}", tokenizer))
    with pytest.raises(BadRow, match="no system"):
        maker.example(read(TALK))


def test_without_a_template_conversations_are_an_error_of_the_command():
    with pytest.raises(ValueError, match="--chat_template: chatml, llama3, seed, or a file"):
        Maker(base_tokenizer(), None).example(read(TALK))


# --- plain text ---


def test_plain_text_is_trained_but_for_bos():
    tokenizer = base_tokenizer()
    example = Maker(tokenizer, None).example(Conversation([], (), text="up\u2028down"))
    bos, eos = tokenizer.special_ids["bos"], tokenizer.special_ids["eos"]
    body = tokenizer.encode("up\u2028down").tolist()
    assert example.ids.tolist() == [bos, *body, eos]
    assert example.mask.tolist() == [False] + [True] * (len(body) + 1)
    short = Maker(tokenizer, None, max_len=4, too_long="right")
    found = short.example(Conversation([], (), text="abcdef")).ids.tolist()
    assert found == [bos, *tokenizer.encode("abc").tolist()]
    with pytest.raises(Dropped, match="nothing trained would be left"):
        Maker(tokenizer, None, max_len=1, too_long="right").example(Conversation([], (), text="a"))


# --- history ---


def test_a_template_that_rewrites_history_is_recognised():
    source = BUILTIN["seed"].source.replace(
        "{{- message['content'] -}}{{- '<|end|>' -}}{%- endgeneration",
        "{{- message['content'] if loop.last else '…' -}}{{- '<|end|>' -}}{%- endgeneration",
    )
    assert source != BUILTIN["seed"].source
    tokenizer, _ = teach(base_tokenizer(), "seed")
    rewriting = Maker(tokenizer, chat_template(source, tokenizer))
    assert rewriting.rewrites_history(read(TALK))
    assert not MAKERS["seed"].rewrites_history(read(TALK))
    picky = "{% if messages | length < 3 %}{{ raise_exception('short') }}{% endif %}"
    whole_only = Maker(tokenizer, chat_template(picky + BUILTIN["seed"].source, tokenizer))
    assert not whole_only.rewrites_history(read(TALK))
    assert not rewriting.rewrites_history(read(exchange("a", "b")))
