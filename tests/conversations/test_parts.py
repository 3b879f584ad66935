"""Content in parts is read as the message that has thoughts and calls beside its content."""

import pytest

from jaxtrain.conversations import forms
from jaxtrain.conversations.parts import without_parts
from jaxtrain.conversations.rows import RowFiles

USER = {"role": "user", "content": "?"}


def test_thoughts_and_calls_stand_beside_the_text():
    said = {
        "role": "assistant",
        "content": [
            {"type": "reasoning", "value": "hm"},
            {"type": "thinking", "thinking": ", so"},
            {"type": "text", "value": "Let me"},
            {"type": "text", "text": " look."},
            {"type": "tool_call", "value": '{"name": "look", "arguments": {"at": "sky"}}'},
            {"type": "tool_call", "value": {"name": "see", "arguments": {}}},
        ],
    }
    found = forms.read({"messages": [USER, said]}).messages[1]
    assert found["content"] == "Let me look."
    assert found["reasoning_content"] == "hm, so"
    assert [call["function"] for call in found["tool_calls"]] == [
        {"name": "look", "arguments": {"at": "sky"}},
        {"name": "see", "arguments": {}},
    ]


def test_content_that_has_no_parts_stays_as_it_is():
    for message in (USER, {"role": "user", "content": ["a"]}, {"role": "user"}):
        assert without_parts(message, "messages[0]") is message


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ({"type": "text"}, r"messages\[1\].content\[0\] has no text in text or value"),
        ({"type": "text", "text": 1}, "has no text in text or value"),
        ({"type": "reasoning"}, "has no text in value or text or reasoning"),
        ({"type": "tool_call", "value": "{"}, r"content\[0\].value is not JSON"),
        ({"type": "tool_call"}, "must have a function with a name"),
        ({"type": "image_url", "image_url": "x"}, "images, audio and files are not supported"),
    ],
)
def test_a_part_that_would_be_lost_is_refused(part, fault):
    with pytest.raises(forms.BadRow, match=fault):
        forms.read({"messages": [USER, {"role": "assistant", "content": [part]}]})


@pytest.mark.shared
def test_public_rows_of_reasoning_with_tools_are_read_whole(shared_dir):
    rows = RowFiles([str(shared_dir / "data" / "sft" / "reason_tool_use_demo_50.jsonl.gz")])
    messages = [m for row in rows for m in forms.read(row.record or {}).messages]
    assert sum("reasoning_content" in message for message in messages) == 109 + 3
    assert sum(len(message.get("tool_calls", ())) for message in messages) == 41 + 9 * 2 + 3 * 3
    assert all(m["content"] or m.get("tool_calls") for m in messages)
