"""Where an assistant's words are, or why that cannot be told."""

import pytest

from jaxtrain.chat.render import render
from jaxtrain.chat.template import ChatTemplate, TemplateError
from tests.chat.talks import BYTES, UNMARKED, talk, trained


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (UNMARKED.replace("%}<|assistant|>{% endif %}", "%}<|user|>{% endif %}"), "add_generation"),
        (
            UNMARKED.replace("<|assistant|>{{ m.content }}<|end|>", "<|assistant|>{{ m.content }}"
            "{{ '<eos>' if loop.last else '<|end|>' }}"),
            "ends assistant message 1 otherwise",
        ),
        ("{% generation %}x{% endgeneration %}", "marks 1 stretches"),
        ("{% if false %}x{% endif %}", "before assistant message 1|writes nothing"),
    ],
)  # fmt: skip
def test_a_template_that_hides_the_answer_is_refused_with_the_reason(source, message):
    with pytest.raises(TemplateError, match=message):
        render(talk("hi", "yo", "more", "end"), ChatTemplate(source), BYTES)


def test_an_assistants_words_may_be_found_by_a_control_token_in_the_middle_of_a_text():
    source = UNMARKED.replace("<|assistant|>", "A:<|assistant|> ")
    assert trained(talk("hi", "yo"), source) == ["yo<|end|>"]


# Small templates in the manner of model families: what is odd about each is in them.
