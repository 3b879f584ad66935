"""Answers as documents: ids and masks against independent ones; every way of cutting prompts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.render import render_prompt
from jaxtrain.chat.source import chat_template, teach
from jaxtrain.conversations.comparisons import read
from jaxtrain.conversations.examples import Maker
from jaxtrain.conversations.forms import BadRow, Dropped
from jaxtrain.conversations.groups import kind_of, make_groups
from tests.chats import base_tokenizer, expected
from tests.preferences import answer, pair_rows, prompts


def make_maker(template, **settings):
    tokenizer, source = teach(base_tokenizer(), template)
    return Maker(tokenizer, chat_template(source, tokenizer), **settings)


MAKERS = {name: make_maker(name) for name in BUILTIN}
BARE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def bare_maker(**settings):
    """Of a template that writes contents alone, so that lengths are those of the texts."""
    tokenizer = base_tokenizer()
    return Maker(tokenizer, chat_template(BARE, tokenizer), **settings)


def tokens(example):
    return list(zip(example.ids.tolist(), example.mask.tolist(), strict=True))


def only_group(row, maker, **settings):
    (group,), _ = make_groups(read(row), maker, **settings)
    return group


def texts(group, maker):
    """Of each document, what is read and what is judged."""
    return [
        tuple(maker.tokenizer.decode(example.ids[part]) for part in (~example.mask, example.mask))
        for example, *_ in group
    ]


@settings(max_examples=20)
@given(prompt=prompts(), better=prompts(), worse=prompts())
@pytest.mark.parametrize("template", BUILTIN)
def test_ids_and_mask_are_the_independent_ones_in_every_form(template, prompt, better, worse):
    """Lures that read like control tokens are among the texts, and move nothing."""
    said = [f"1{better[-1]['content']}", f"2{worse[-1]['content']}"]
    wanted = [False] * len(prompt) + [True]
    right = [expected(template, prompt + answer(text), wanted) for text in said]
    for row in pair_rows(prompt, *said):
        found = only_group({**row, "margin": 0.5}, MAKERS[template])
        assert [tokens(example) for example, *_ in found] == right
        assert [value for _, value, _ in found] == [0.5, 0.0]
        asked = render_prompt(prompt, MAKERS[template].template, MAKERS[template].codec).ids
        for example, *_ in found:
            np.testing.assert_array_equal(example.ids[: len(asked)], asked)
            assert int(example.mask.argmax()) == len(asked)


def test_an_answer_of_several_turns_is_judged_by_all_that_the_assistant_says():
    call = {"role": "assistant", "content": "Let me look."}
    said = [call, {"role": "tool", "content": "blue"}, *answer("Blue.")]
    group = only_group({"prompt": "?", "chosen": said, "rejected": "b"}, MAKERS["seed"])
    wanted = [False, True, False, True]
    whole = [{"role": "user", "content": "?"}, *said]
    assert tokens(group[0].example) == expected("seed", whole, wanted)


def test_a_prompt_in_the_middle_of_a_word_is_the_same_for_all_answers():
    """A tokenizer that has ` a` as one token; nothing of an answer joins the prompt."""
    tokenizer = base_tokenizer()
    assert len(tokenizer.encode("abc")) < 4
    maker = bare_maker()
    for prompt in ("x ", "x a", "a"):
        group = only_group({"prompt": prompt, "chosen": "bc", "rejected": " abc"}, maker)
        for example, *_ in group:
            assert example.ids[~example.mask].tolist() == tokenizer.encode(prompt).tolist()
        assert texts(group, maker) == [(prompt, "bc"), (prompt, " abc")]


# --- too long ---


@pytest.mark.parametrize("prompt", ["PROMPT 8", "PROMPT8 "])
def test_a_prompt_is_cut_on_the_left_by_what_the_longest_answer_needs(prompt):
    maker = bare_maker(max_len=10, too_long="left")
    row = {"prompt": prompt, "chosen": "ABCDE", "rejected": "ab"}
    group = only_group(row, maker)
    assert texts(group, maker) == [(prompt[-5:], "ABCDE"), (prompt[-5:], "ab")]
    assert [example.cut for example, *_ in group] == ["tokens", "tokens"]
    with pytest.raises(Dropped, match=r"^too long$"):
        make_groups(read(row), bare_maker(max_len=10))


@settings(max_examples=60)
@given(
    lengths=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12)),
    max_len=st.integers(1, 20),
)
def test_answers_keep_all_their_ids_as_long_as_something_of_the_prompt_is_left(lengths, max_len):
    num_prompt, *num_answers = lengths
    words = ["z" * num_prompt, "x" * num_answers[0], "y" * num_answers[1]]
    maker = bare_maker(max_len=max_len, too_long="left")
    row = dict(zip(("prompt", "chosen", "rejected"), words, strict=True))
    room = min(num_prompt, max_len - max(num_answers))
    if room < 1:
        with pytest.raises(Dropped, match="an answer alone is too long"):
            make_groups(read(row), maker)
        return
    assert texts(only_group(row, maker), maker) == [("z" * room, words[1]), ("z" * room, words[2])]


def test_whole_turns_of_the_prompt_go_first_and_the_system_message_stays():
    said = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "first"},
        *answer("reply"),
        {"role": "user", "content": "second"},
    ]
    row = {"prompt": said, "chosen": "ABCDE", "rejected": "ab"}
    maker = bare_maker(max_len=12, too_long="left")
    group = only_group(row, maker)
    assert texts(group, maker) == [("Ssecond", "ABCDE"), ("Ssecond", "ab")]
    assert [example.cut for example, *_ in group] == ["turns", "turns"]
    maker = bare_maker(max_len=9, too_long="left")
    assert texts(only_group(row, maker), maker) == [("cond", "ABCDE"), ("cond", "ab")]


# --- what cannot be compared ---


@pytest.mark.parametrize(
    ("template", "row", "error", "reason"),
    [
        ("seed", {"chosen": "a", "rejected": "a"}, Dropped, "equal answers"),
        ("llama3", {"chosen": "a", "rejected": " a\n"}, Dropped, "equal answers"),
        ("seed", {"chosen": "a", "rejected": " "}, BadRow, "empty answer"),
        ("seed", {"responses": ["a", "b", "a"]}, Dropped, "equal answers"),
        ("seed", {"responses": ["a", "b", "c"], "scores": [2, 1, 1]}, Dropped, "tied scores"),
    ],
)
def test_answers_that_cannot_be_compared_are_left_out_by_a_reason(template, row, error, reason):
    with pytest.raises(error) as found:
        make_groups(read({"prompt": "q", **row}), MAKERS[template])
    assert found.value.reason == reason


def test_a_template_that_writes_the_prompt_by_the_answer_is_refused():
    tokenizer = base_tokenizer()
    source = "{% if messages[-1].content == 'a' %}A{% else %}B{% endif %}" + BARE
    maker = Maker(tokenizer, chat_template(source, tokenizer))
    with pytest.raises(BadRow, match="writes the prompt otherwise before another answer"):
        make_groups(read({"prompt": "q", "chosen": "a", "rejected": "b"}), maker)
    without_prompt = "{% for m in messages %}{% if m.role == 'assistant' %}" + (
        "{% generation %}{{ messages[0].content + m.content }}{% endgeneration %}"
        "{% endif %}{% endfor %}"
    )
    maker = Maker(tokenizer, chat_template(without_prompt, tokenizer))
    with pytest.raises(Dropped, match="it has no prompt"):
        make_groups(read({"prompt": "q", "chosen": "a", "rejected": "b"}), maker)


# --- ranked lists ---

LIST = {"prompt": "q", "responses": ["a", "b", "c"], "scores": [1, 4, 2.5]}


def said_and_values(groups, maker):
    return [
        [(said, value) for (_, said), (_, value, _) in zip(texts(g, maker), g, strict=True)]
        for g in groups
    ]


def test_a_list_is_one_group_or_its_pairs_or_its_ends():
    maker = bare_maker()
    for ranked, groups in {
        "list": [[("b", 4.0), ("c", 2.5), ("a", 1.0)]],
        "pairs": [
            [("b", 1.5), ("c", 0.0)],
            [("b", 3.0), ("a", 0.0)],
            [("c", 1.5), ("a", 0.0)],
        ],
        "best_worst": [[("b", 3.0), ("a", 0.0)]],
    }.items():
        found, left_out = make_groups(read(LIST), maker, ranked)
        assert said_and_values(found, maker) == groups
        assert not left_out
        assert kind_of(read(LIST), ranked) == ("ranks" if ranked == "list" else "pairs")


def test_pairs_of_a_list_leave_out_ties_and_equal_answers_and_say_so():
    maker = bare_maker()
    row = {**LIST, "responses": ["a", "b", "a", "d"], "scores": [1, 4, 2.5, 1]}
    found, left_out = make_groups(read(row), maker, "pairs")
    assert [[said for said, _ in g] for g in said_and_values(found, maker)] == [
        ["b", "a"],
        ["b", "a"],
        ["b", "d"],
        ["a", "d"],
    ]
    assert left_out == {"equal answers": 1, "tied scores": 1}
    with pytest.raises(Dropped, match="tied scores"):
        make_groups(read({**LIST, "scores": [1, 1, 1]}), maker, "pairs")
    ends, _ = make_groups(read({**LIST, "scores": [1, 4, 1]}), maker, "best_worst")
    assert said_and_values(ends, maker) == [[("b", 3.0), ("c", 0.0)]]


# --- steps ---


@settings(max_examples=20)
@given(
    prompt=prompts(),
    steps=st.lists(st.tuples(prompts(), st.booleans()), min_size=1, max_size=4),
)
@pytest.mark.parametrize("template", BUILTIN)
def test_labels_stand_at_the_last_token_of_each_step(template, prompt, steps):
    said = [(f"<{words[-1]['content']}>", label) for words, label in steps]
    row = {
        "prompt": prompt,
        "completions": [text for text, _ in said],
        "labels": [label for _, label in said],
    }
    ((example, value, labels),) = only_group(row, MAKERS[template])
    whole = expected(template, prompt, [False] * len(prompt))
    whole += expected(template, answer("\n".join(row["completions"])), [True])[
        1 if template != "chatml" else 0 :
    ]
    assert example.ids.tolist() == [number for number, _ in whole]
    assert value == 0
    # One id a byte but for `abc`: steps end where their bytes do.
    encode = MAKERS[template].tokenizer.encode
    at = next(index for index, (_, trained) in enumerate(whole) if trained) - 1
    right = []
    for number, (text, label) in enumerate(said):
        at += len(encode(text + ("" if number == len(said) - 1 else "\n")))
        right.append((at, int(label)))
    places = np.flatnonzero(example.mask).tolist()
    assert labels is not None
    assert list(zip(places, labels[places].tolist(), strict=True)) == right
    assert labels.sum() == sum(label for _, label in said)


def test_steps_keep_their_places_where_the_prompt_is_cut():
    row = {"prompt": "0123456789", "completions": ["ab", "c"], "labels": [True, False]}
    maker = bare_maker(max_len=7, too_long="left")
    ((example, _, labels),) = only_group(row, maker)
    assert maker.tokenizer.decode(example.ids) == "789ab\nc"
    assert np.flatnonzero(example.mask).tolist() == [5, 6]
    assert labels is not None
    assert labels.tolist() == [0, 0, 0, 0, 0, 1, 0]
