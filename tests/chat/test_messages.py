"""Conversations are brought into one form, or refused with the place and the reason."""

import pytest

from jaxtrain.chat.messages import normalize, normalize_tools


def test_text_parts_are_joined_and_arguments_become_objects():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "1"},
    ]
    user, assistant, tool = normalize(messages)
    assert user == {"role": "user", "content": "ab"}
    assert assistant["content"] == ""
    assert assistant["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert tool == messages[2]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "messages must be a list of messages, not null"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\].role=\['user'\] must be one of"),
        ([{"role": "assistant", "content": "x", "tool_calls": 3}], "tool_calls must be a list"),
        ("hi", "messages must be a list of messages, not a text"),
        ([], "messages is empty"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"role": "usr", "content": "x"}], r"messages\[0\].role='usr' must be one of system"),
        ([{"role": "user"}], r"messages\[0\].content is missing"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be a text"),
        ([{"role": "user", "content": "\ud800"}], r"lone surrogate U\+D800"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] must be a part"),
        (
            [{"role": "user", "content": [{"type": "text", "value": "x"}]}],
            r"messages\[0\].content\[0\].text is missing; it must be a text",
        ),
        ([{"role": "user", "content": "x", "tool_calls": [1]}], "only an assistant calls tools"),
        ([{"role": "assistant", "tool_calls": [{}]}], "must have a function with a name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "arguments is not JSON",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "1"}}]}],
            "arguments must be an object",
        ),
    ],
)
def test_a_malformed_conversation_is_refused(messages, message):
    with pytest.raises(ValueError, match=message):
        normalize(messages)


@pytest.mark.parametrize("tools", [3, "f", {"name": "f"}, [None], ["f"]])
def test_tools_that_are_none_are_refused(tools):
    with pytest.raises(ValueError, match=r"^tools(\[0\])? must be"):
        normalize_tools(tools)


def test_no_tools_are_none():
    assert normalize_tools(None) is normalize_tools([]) is None
    assert normalize_tools([{"name": "f"}]) == [{"name": "f"}]
