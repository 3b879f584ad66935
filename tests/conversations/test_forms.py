"""Every accepted form becomes the same messages; what is none is refused by a reason."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.conversations.forms import FORMS, BadRow, read
from tests.chats import conversations

CALL = {"name": "look", "arguments": {"at": "sky"}}


def as_sharegpt(messages):
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    return {"conversations": [{"from": names[m["role"]], "value": m["content"]} for m in messages]}


def as_alpaca(messages):
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    texts = [m["content"] for m in messages if m["role"] != "system"]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    return {
        "system": system,
        "instruction": pairs[-1][0],
        "input": "",
        "output": pairs[-1][1],
        "history": [list(pair) for pair in pairs[:-1]],
    }


def as_prompt(messages):
    return {"prompt": messages[:-1], "completion": messages[-1:]}


@given(messages=conversations(), unused=st.sampled_from([{}, {"id": 3}, {"tools": None}]))
def test_every_form_is_read_as_the_same_messages(messages, unused):
    for row in ({"messages": messages}, as_sharegpt(messages), as_alpaca(messages)):
        found = read({**row, **unused})
        assert found.messages == messages
        assert found.trained == tuple(m["role"] == "assistant" for m in messages)
        assert found.tools is None


@given(messages=conversations())
def test_of_prompt_and_completion_only_the_completion_is_trained(messages):
    found = read(as_prompt(messages))
    assert found.messages == messages
    assert found.trained == (*(False for _ in messages[:-1]), True)


@pytest.mark.parametrize("key", ["response", "completion"])
def test_prompt_and_response_are_one_exchange(key):
    found = read({"prompt": "p", key: "r"})
    assert found.messages == [
        {"role": "user", "content": "p"},
        {"role": "assistant", "content": "r"},
    ]


def test_input_stands_below_the_instruction():
    row = {"instruction": "Add.", "input": "1 2", "output": "3"}
    assert read(row).messages[0]["content"] == "Add.\n\n1 2"
    nested = {"instruction": "Add.", "instances": [{"input": "1 2", "output": "3"}]}
    assert read(nested).messages == read(row).messages


def test_plain_text_is_no_conversation():
    assert read({"text": "up\u2028down"}).text == "up\u2028down"


@pytest.mark.parametrize(
    ("flags", "trained"),
    [
        ({"weight": 0}, False),
        ({"weight": 1}, True),
        ({"train": False}, False),
        ({"train": True}, True),
        ({"weight": None}, True),
        ({"weight": 0.25}, True),
    ],
)
def test_a_message_says_whether_it_is_trained(flags, trained):
    answer = {"role": "assistant", "content": "b", **flags}
    found = read({"messages": [{"role": "user", "content": "a"}, answer]})
    assert found.trained == (False, trained)
    assert found.messages[1] == {"role": "assistant", "content": "b"} or flags == {"weight": None}


def test_calls_and_answers_of_tools_in_sharegpt_are_those_of_messages():
    rows = [
        {
            "conversations": [
                {"from": "human", "value": "?"},
                {"from": "function_call", "value": json.dumps(CALL)},
                {"from": "observation", "value": "blue"},
                {"from": "gpt", "value": "Blue."},
            ],
            "tools": json.dumps([{"name": "look"}]),
        },
        {
            "messages": [
                {"role": "user", "content": "?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "type": "function",
                            "function": {**CALL, "arguments": json.dumps(CALL["arguments"])},
                        }
                    ],
                },
                {"role": "tool", "content": "blue"},
                {"role": "assistant", "content": "Blue."},
            ],
            "tools": [{"type": "function", "function": {"name": "look"}}],
        },
    ]
    first, second = map(read, rows)
    assert first == second
    assert first.trained == (False, True, False, True)
    assert first.messages[1]["tool_calls"][0]["function"] == CALL


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ({"a": 1}, "fits no form", "has the keys ['a'], of none of messages, sharegpt"),
        ({"messages": [], "text": "x"}, "fits several forms", "messages and text"),
        ({"messages": []}, "bad messages", "messages is empty"),
        ({"messages": "x"}, "bad messages", "must be a list"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "bad messages", "role='bot'"),
        (
            {"messages": [{"role": "user", "content": "x", "weight": 1}]},
            "bad messages",
            "messages[0] is a user's and asks to be trained",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "weight": -1}]},
            "bad messages",
            "messages[0]: weight must be a number from 0 on",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "weight": 10**400}]},
            "bad messages",
            "messages[0]: weight must be a number from 0 on (at most 3.4e+38), or train",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "weight": 1, "train": True}]},
            "bad messages",
            "weight must be a number from 0 on",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "train": 0.5}]},
            "bad messages",
            "weight must be a number from 0 on",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "reasoning_content": 1}]},
            "bad messages",
            "messages[0].reasoning_content must be a text",
        ),
        ({"conversations": [{"from": "alien", "value": "x"}]}, "bad messages", "from='alien'"),
        ({"conversations": ["x"]}, "bad messages", "must be a list of objects"),
        (
            {"conversations": [{"from": "function_call", "value": "{"}]},
            "bad messages",
            "conversations[0].value is not JSON",
        ),
        ({"instruction": 1, "output": "x"}, "bad messages", "instruction must be a text"),
        ({"instruction": "a", "output": "x", "history": ["q"]}, "bad messages", "list of pairs"),
        ({"instruction": "a", "instances": [{}, {}]}, "bad messages", "2 of them; make a row"),
        ({"prompt": "p"}, "fits no form", "has the keys ['prompt']"),
        ({"prompt": "p", "response": "r", "tools": "["}, "bad messages", "tools is not JSON"),
        ({"text": "  "}, "empty", "its text is empty"),
    ],
)
def test_a_row_that_is_no_conversation_is_refused_by_a_reason(row, reason, detail):
    with pytest.raises(BadRow) as error:
        read(row)
    assert error.value.reason == reason
    assert detail in str(error.value)


def test_a_named_form_decides_where_several_fit_and_is_held_to():
    row = {"messages": [{"role": "user", "content": "x"}], "text": "y"}
    assert read(row, "text").text == "y"
    assert read(row, "messages").text is None
    with pytest.raises(BadRow, match="not those of alpaca"):
        read(row, "alpaca")


def test_forms_are_told_apart_by_their_keys():
    rows = {
        "messages": {"messages": 1},
        "sharegpt": {"conversations": 1},
        "alpaca": {"instruction": 1, "output": 1},
        "prompt": {"prompt": 1, "response": 1},
        "text": {"text": 1},
    }
    assert rows.keys() == FORMS.keys()
    for name, row in rows.items():
        assert [form for form, (fits, _) in FORMS.items() if fits(row)] == [name]
