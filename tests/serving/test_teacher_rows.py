"""Answers as rows that the reader of conversations reads, with what is trained as it must be."""

import pytest

from jaxtrain.conversations import forms
from jaxtrain.serving.teacher_rows import CUT, EMPTY, GIVEN_UP, REFUSED, WITHHELD, Form, sort

CHAT, PLAIN = Form(plain=False, keep_cut=False), Form(plain=True, keep_cut=False)
ABOUT = {"teacher": {"model": "t"}, "sampling": {"seed": 1}, "sample": 0}


def answer(content="yes", finish="stop", **more):
    return {"message": {"role": "assistant", "content": content} | more, "finish": finish}


def one(form, row, given):
    found = sort(form, [row], {0: given}, [ABOUT])
    assert not found.left_out
    return found.rows[0]


def test_a_prompt_and_its_answer_become_a_conversation():
    row = one(CHAT, {"prompt": "why?", "id": 7}, answer())
    assert row == {
        "id": 7,
        "messages": [
            {"role": "user", "content": "why?"},
            {"role": "assistant", "content": "yes"},
        ],
        **ABOUT,
        "finish": "stop",
    }
    assert forms.read(row).trained == (False, True)


def test_of_a_conversation_only_the_answer_is_trained():
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c", "weight": 1},
        {"role": "user", "content": "d"},
    ]
    row = one(CHAT, {"messages": messages, "tools": [{"name": "f"}]}, answer())
    assert forms.read(row).trained == (False, False, False, True, False, True)
    assert forms.read(row).tools
    assert CHAT.conversation({"messages": messages})[3] == {"role": "assistant", "content": "c"}


def test_a_plain_prompt_and_its_answer_become_a_text():
    row = one(PLAIN, {"prompt": "once"}, answer(" upon"))
    assert forms.read(row).text == "once upon"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_and_calls_are_kept_and_what_servers_add_is_not(name):
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = answer(None, **{name: "hm", "tool_calls": [call], "audio": None, "annotations": []})
    row = one(CHAT, {"prompt": "a"}, given)
    assert row["messages"][-1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [call],
    }


def test_the_model_that_a_server_names_is_kept_beside_the_one_asked_for():
    row = one(CHAT, {"prompt": "a"}, answer() | {"model": "t-2026-11"})
    assert row["teacher"] == {"model": "t", "served_model": "t-2026-11"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (answer(finish="length"), CUT),
        (answer(finish="content_filter"), WITHHELD),
        (answer("", refusal="I must not"), WITHHELD),
        (answer(" \n"), EMPTY),
        ({"refused": "400: too long"}, REFUSED),
        (None, GIVEN_UP),
    ],
)
def test_what_is_left_out_is_kept_with_its_reason(given, reason):
    answers = {1: answer()} | ({} if given is None else {0: given})
    found = sort(CHAT, [{"prompt": "a", "id": 3}, {"prompt": "b"}], answers, [ABOUT, ABOUT])
    assert found.left_out == [{"prompt": "a", "id": 3, **ABOUT, "reason": reason, "answer": given}]
    assert list(found.ledger()) == ["1 rows of 2 answers", f"  left out: 1 {reason}"]


def test_answers_that_were_cut_can_be_kept():
    row = one(Form(plain=False, keep_cut=True), {"prompt": "a"}, answer(finish="length"))
    assert row["finish"] == "length"


@pytest.mark.parametrize(
    ("form", "row", "message"),
    [
        (PLAIN, {"messages": []}, "has messages; with --plain every row is a prompt"),
        (CHAT, {"prompt": 3}, "prompt must be a text, not int"),
        (CHAT, {"messages": []}, "must end with what an assistant is to answer"),
        (CHAT, {"messages": "hello"}, "messages must be a list of objects"),
        (
            CHAT,
            {"messages": [{"role": "assistant", "content": "a"}]},
            "must end with what an assistant is to answer",
        ),
        (CHAT, {"messages": [{"role": "boss", "content": "a"}]}, "role='boss'"),
        (CHAT, {"prompt": "a", "text": "b"}, "fits the forms messages and text"),
    ],
)
def test_a_row_that_could_not_be_read_with_an_answer_is_refused_before(form, row, message):
    with pytest.raises(ValueError, match=message):
        form.check(row)
