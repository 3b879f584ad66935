"""The built-in templates say which control tokens they write."""

import re

import pytest

from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.template import ChatTemplate


@pytest.mark.parametrize("name", BUILTIN)
def test_control_tokens_are_what_the_template_writes(name):
    builtin = BUILTIN[name]
    roles = ("system", "user", "assistant", "tool")
    messages = [{"role": role, "content": "x"} for role in roles]
    text = ChatTemplate(builtin.source).render(messages, add_generation_prompt=True)
    assert set(re.findall(r"<\|\w+\|>", text)) == set(builtin.control_tokens)
    assert ChatTemplate(builtin.source).marks_generation
