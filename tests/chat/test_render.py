"""Ids and marks of conversations: against hand-derived ones, and against a template by hand."""

import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.messages import normalize
from jaxtrain.chat.render import render, render_prompt, rewrites_history, turn_end
from jaxtrain.chat.template import ChatTemplate, TemplateError
from tests.chat.talks import BYTES, CONTROLS, FORGETFUL, MARKED, UNMARKED, Bytes, talk, trained


@pytest.mark.parametrize("source", [MARKED, UNMARKED])
@pytest.mark.parametrize(
    ("messages", "num_ids", "expected"),
    [
        (talk("hi", "yo", "hi again", "bye"), 24, ["yo<|end|>", "bye<|end|>"]),
        (talk("p", ""), 6, ["<|end|>"]),
        (talk("", "yes"), 8, ["yes<|end|>"]),
        (
            talk("2+2?", "<think>easy</think>4", "3+3?", "<think>also</think>6"),
            31,
            ["<think>easy</think>4<|end|>", "<think>also</think>6<|end|>"],
        ),
    ],
)
def test_marks_equal_those_derived_by_hand(source, messages, num_ids, expected):
    assert trained(messages, source) == expected
    assert len(render(messages, ChatTemplate(source), BYTES).ids) == num_ids


@pytest.mark.shared
def test_fixture_rows_have_the_published_counts(shared_dir):
    inputs = shared_dir / "cases" / "inputs"
    published = json.loads((inputs / "SFT-00.tokenizer.json").read_text())["added_tokens"]
    codec = Bytes([token["content"] for token in published])
    for name in ("SFT-00", "SFT-01"):
        template = ChatTemplate((inputs / f"{name}.template.jinja").read_text())
        for rows, expected in {
            "SFT-01": [(24, 7)],
            "SFT-06": [(37, 31)],
            "SFT-11": [(31, 16)],
            "SFT-12": [(128, 4), (9, 4)],
        }.items():
            lines = (inputs / f"{rows}.jsonl").read_text().splitlines()
            results = [render(json.loads(line)["messages"], template, codec) for line in lines]
            assert [(len(r.ids), int((r.turns >= 0).sum())) for r in results] == expected


@pytest.mark.parametrize("source", [MARKED, UNMARKED])
def test_control_tokens_typed_by_people_stay_text(source):
    typed = "x<|end|><|assistant|>y<think>z"
    messages = talk(typed, "<think>a<|end|></think>b<think>")
    result = render(messages, ChatTemplate(source), BYTES)
    assert [int(i) for i in result.ids if i >= 256] == [256, 259, 261, 260, 262, 263, 261]
    assert trained(messages, source) == ["<think>a<|end|></think>b<think><|end|>"]


TEXTS = st.lists(st.sampled_from(["a", " ", "\n", "é", "<|end|>", "<|assistant|>", "<bos>"]))


@pytest.mark.parametrize("name", BUILTIN)
@hypothesis.given(
    contents=st.lists(TEXTS.map("".join), min_size=1, max_size=5), first=st.integers(0, 1)
)
def test_builtin_templates_mark_exactly_what_the_assistant_says(name, contents, first):
    """Against the conversation put together by hand, one piece after the other."""
    builtin = BUILTIN[name]
    codec = Bytes(builtin.control_tokens)
    messages = talk(*["-"] * first, *contents)[first:]
    begin, header, strip = {
        "chatml": ([], lambda role: ["<|im_start|>", role + "\n"], False),
        "llama3": (
            ["<|begin_of_text|>"],
            lambda role: ["<|start_header_id|>", role, "<|end_header_id|>", "\n\n"],
            True,
        ),
        "seed": (["<|bos|>"], lambda role: [f"<|{role}|>"], False),
    }[name]
    ids, turns = [], []

    def add(piece, turn, control=True):
        known = control and piece in codec.control_ids
        new = [codec.control_ids[piece]] if known else list(piece.encode())
        ids.extend(new)
        turns.extend([turn] * len(new))

    for piece in begin:
        add(piece, -1)
    for index, message in enumerate(messages):
        turn = index if message["role"] == "assistant" else -1
        for piece in header(message["role"]):
            add(piece, -1)
        content = message["content"].strip() if strip else message["content"]
        add(content, turn, control=False)
        add(builtin.control_tokens[0], turn)
        if name == "chatml":
            add("\n", -1)
    result = render(messages, ChatTemplate(builtin.source), codec)
    assert result.ids.tolist() == ids
    assert result.turns.tolist() == turns


@pytest.mark.parametrize("source", [MARKED, UNMARKED, *(b.source for b in BUILTIN.values())])
def test_a_prompt_is_a_prefix_of_the_conversation_id_by_id(source):
    words = {word for builtin in BUILTIN.values() for word in builtin.control_tokens}
    codec = Bytes([*CONTROLS, *sorted(words - set(CONTROLS))])
    messages, template = talk("hi", "\nyo", "more", "end"), ChatTemplate(source)
    whole = render(messages, template, codec)
    for index in (1, 3):
        prompt = render_prompt(messages[:index], template, codec)
        assert whole.ids[: len(prompt.ids)].tolist() == prompt.ids.tolist()
        assert whole.turns[len(prompt.ids)] == index
    assert not rewrites_history(messages, template, codec)


def test_rewritten_history_is_trained_as_it_is_rendered():
    messages = talk("2+2?", "<think>easy</think>4", "3+3?", "<think>also</think>6")
    assert trained(messages, FORGETFUL) == ["4<|end|>", "<think>also</think>6<|end|>"]
    result = render(messages, ChatTemplate(FORGETFUL), BYTES)
    assert b"easy" not in bytes(int(i) for i in result.ids if i < 256)
    assert rewrites_history(messages, ChatTemplate(FORGETFUL), BYTES)


def test_messages_tell_where_each_token_came_from():
    result = render(talk("hi", "yo"), ChatTemplate(UNMARKED), BYTES)
    assert result.messages.tolist() == [-1, -1, 0, 0, -1, -1, 1, 1, -1]


CALLING = (  # thoughts in the last turn only, calls and results as text between control tokens
    "{% for m in messages %}{% if m.role == 'tool' %}<|user|><result>{{ m.content }}<|end|>"
    "{% elif m.role == 'assistant' %}<|assistant|>"
    "{% if loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}<|end|>\n"
    "{% else %}<|user|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BRACKETS = (  # no header before an answer, no system message
    "<bos>{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '[A] ' + m.content + ' [/A]' if m.role == 'user' else ' ' + m.content + eos_token }}"
    "{% endfor %}"
)
RENAMED = (  # the assistant is called otherwise, content is trimmed
    "<bos>{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<|user|>' + role + '\n' + m.content | trim + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|user|>model\n' }}{% endif %}"
)
CLOSING = (  # an end of text after the last turn
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
THINKING = (  # the prompt opens a thought that no whole conversation shows
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
FAMILIES = {
    "calling": CALLING, "brackets": BRACKETS, "renamed": RENAMED, "closing": CLOSING,
}  # fmt: skip
TOOLED = Bytes([*CONTROLS, "<call>", "</call>"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("calling", ["yo<|end|>", "<think></think> bye \n<|end|>"]),
        ("brackets", [" yo<eos>", "  bye \n<eos>"]),
        ("renamed", ["yo<|end|>", "bye<|end|>"]),
        ("closing", ["yo<|end|>", " bye \n<|end|>"]),
    ],
)
def test_each_familys_manner_gives_exact_marks_and_prompts(name, expected):
    template = ChatTemplate(FAMILIES[name], {"eos_token": "<eos>"})
    messages = talk("hi", "yo", "yo", " bye \n")
    result = render(messages, template, TOOLED)
    assert [TOOLED.words(result.ids[result.turns == turn]) for turn in (1, 3)] == expected
    for index in (1, 3):
        prompt = render_prompt(messages[:index], template, TOOLED)
        assert result.ids[: len(prompt.ids)].tolist() == prompt.ids.tolist()


def test_a_turn_with_a_call_or_an_empty_answer_is_trained_to_its_end():
    call = {"function": {"name": "f", "arguments": '{"x": "<|end|>"}'}}
    messages = normalize(
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call, call]},
            {"role": "tool", "content": "3"},
            {"role": "assistant", "content": ""},
        ]
    )
    text = '<call>{"name": "f", "arguments": {"x": "<|end|>"}}</call>'
    assert trained(messages, CALLING, TOOLED) == [text * 2 + "<|end|>", "<think></think><|end|>"]
    ids = render(messages, ChatTemplate(CALLING), TOOLED).ids
    assert (ids == TOOLED.control_ids["<|end|>"]).sum() == 4


def test_turn_end_is_the_token_after_a_plain_answer():
    variables = {"eos_token": "<eos>"}
    assert turn_end(ChatTemplate(CLOSING, variables), TOOLED) == "<|end|>"
    assert turn_end(ChatTemplate(BRACKETS, variables), TOOLED) == "<eos>"
    assert turn_end(ChatTemplate("{{ messages[1].content }}"), TOOLED) is None
    with pytest.raises(TemplateError, match="no"):
        turn_end(ChatTemplate("{{ raise_exception('no') }}"), TOOLED)


def test_a_prompt_needs_no_marks_in_what_was_said_before():
    template = ChatTemplate(THINKING, {"eos_token": "<eos>"})
    messages = talk("hi", "<think>a</think>yo", "more", "bye")
    with pytest.raises(TemplateError, match="before assistant message 1 is not what it writes"):
        render(messages, template, BYTES)
    prompt = render_prompt(messages[:3], template, BYTES)
    assert BYTES.words(prompt.ids) == (
        "<|user|>hi<eos><|assistant|>yo<eos><|user|>more<eos><|assistant|><think>\n"
    )


@pytest.mark.parametrize(
    ("extra", "tools", "message"),
    [
        ([{"role": "tool", "content": "3"}], None, r"leaves out message 2 \(tool\)"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}],
            None,
            "leaves out the tool calls of message 2",
        ),
        ([], [{"name": "f"}], "leaves out the tools"),
    ],
)
def test_a_template_that_leaves_out_what_it_is_given_is_refused(extra, tools, message):
    source = "{% for m in messages if m.role != 'tool' %}<|assistant|>{{ m.content }}<|end|>" + (
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    messages = [*talk("hi", "yo"), *extra]
    for run in (render, render_prompt):
        with pytest.raises(TemplateError, match=message):
            run(messages, ChatTemplate(source), BYTES, tools=tools)


def test_a_token_ends_where_a_mark_changes_and_carries_it():
    messages = talk("hi", "abcd")

    def by_halves(given, text, spans):
        assert given == messages
        ((start, stop, message),) = spans
        assert text[start:stop] == "abcd<|end|>"
        assert message == 1
        marks = np.zeros(len(text), np.int32)
        marks[start : start + 2] = 7
        return marks

    class Pieces(Bytes):
        """Keeps the pieces into which texts are cut."""

        def encode_pieces(self, pieces):
            seen.extend(pieces)
            return super().encode_pieces(pieces)

    seen: list[str] = []
    plain = render(messages, ChatTemplate(MARKED), Pieces())
    assert seen == ["hi", "abcd"]
    assert plain.marks.tolist() == [0] * len(plain.ids)
    seen.clear()
    marked = render(messages, ChatTemplate(MARKED), Pieces(), mark=by_halves)
    assert seen == ["hi", "ab", "cd"]
    np.testing.assert_array_equal(marked.ids, plain.ids)
    assert bytes(marked.ids[marked.marks == 7].tolist()) == b"ab"
    assert set(marked.marks.tolist()) == {0, 7}
