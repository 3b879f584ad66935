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
