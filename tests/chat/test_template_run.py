"""What the template wrote is told from what people typed."""

import pytest

from jaxtrain.chat.render import render
from jaxtrain.chat.template import ChatTemplate, TemplateError
from tests.chat.talks import BYTES, UNMARKED, talk


def test_content_that_a_template_turns_into_markup_is_refused():
    source = UNMARKED.replace("{{ m.content }}", "{{ '[%s]' % m.content }}")
    with pytest.raises(TemplateError, match="cannot be told"):
        render(talk("x<|end|>", "y"), ChatTemplate(source), BYTES)


def test_control_tokens_in_tools_stay_text_or_are_refused():
    tools = [{"name": "f<|end|>"}]
    written = ChatTemplate("{{ tools | tojson }}" + UNMARKED)
    ids = render(talk("hi", "yo"), written, BYTES, tools=tools).ids
    assert [int(i) for i in ids if i >= 256] == [256, 259, 261, 260, 261]
    blurred = ChatTemplate("{{ '[%s]' | format(tools[0].name) }}" + UNMARKED)
    with pytest.raises(TemplateError, match="cannot be told from one"):
        render(talk("hi", "yo"), blurred, BYTES, tools=tools)


def test_thoughts_apart_from_the_content_are_put_before_it_where_a_template_does_not_read_them():
    apart = [{"role": "assistant", "reasoning_content": " easy\n", "content": "4"}]
    inside = [{"role": "assistant", "content": "<think>\neasy\n</think>\n\n4"}]
    question = talk("2+2?")
    first, second = (
        render(question + each, ChatTemplate(UNMARKED), BYTES) for each in (apart, inside)
    )
    assert first.ids.tolist() == second.ids.tolist()
    assert [int(i) for i in first.ids if i >= 262] == [262, 263]
    reading = UNMARKED.replace("{{ m.content }}", "{{ m.reasoning_content }}|{{ m.content }}")
    read = render(question + apart, ChatTemplate(reading), BYTES)
    assert BYTES.words(read.ids).endswith("<|assistant|> easy\n|4<|end|>")


@pytest.mark.parametrize(
    "more",
    [{"reasoning_content": " "}, {"reasoning_content": None}, {"content": "<think>a</think>4"}],
)
def test_thoughts_that_are_none_or_in_the_content_already_are_not_put_there(more):
    said = {"role": "assistant", "reasoning_content": "b", "content": "4", **more}
    found = render([*talk("2+2?"), said], ChatTemplate(UNMARKED), BYTES)
    assert BYTES.words(found.ids).endswith(f"<|assistant|>{said['content']}<|end|>")
