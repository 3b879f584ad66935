"""A token ends where a step does, whatever the tokenizer would join."""

import pytest

from jaxtrain.chat.codec import TokenizerCodec
from jaxtrain.chat.render import render
from jaxtrain.chat.source import chat_template, teach
from jaxtrain.chat.template import TemplateError
from jaxtrain.conversations.steps import mark_steps
from jaxtrain.tokenizer.training import Training

TEXT = "\n  one.\ntwo.\nthree. "
ENDS = (8, 13, 20)


def marked(source, text=TEXT, ends=ENDS):
    """The text of each step's tokens, and how many there are."""
    base = Training("bpe", 277, num_reserved=8).train(["one.\ntwo.\nthree.\n" * 9])
    tokenizer, seed = teach(base, "seed")
    source = seed if source is None else source
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
    found = render(
        messages, chat_template(source, tokenizer), TokenizerCodec(tokenizer), mark=mark_steps(ends)
    )
    pieces = [found.ids[found.marks == number] for number in range(1, len(ends) + 1)]
    return [tokenizer.decode(piece) for piece in pieces], sum(map(len, pieces))


def test_each_step_is_made_of_tokens_of_its_own():
    assert marked(None)[0] == ["\n  one.\n", "two.\n", "three. "]
    steps, num_tokens = marked(None, ends=(4, 9, 20))  # in the middle of `one` and of `two`
    assert steps == ["\n  o", "ne.\nt", "wo.\nthree. "]
    assert num_tokens > marked(None, ends=(20,))[1]


TRIMMING = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def test_blanks_that_a_template_strips_are_of_no_step():
    assert marked(TRIMMING)[0] == ["one.\n", "two.\n", "three."]


@pytest.mark.parametrize(
    ("source", "text", "ends"),
    [
        (TRIMMING.replace("trim", "upper"), TEXT, ENDS),
        (TRIMMING, "\n\none.", (2, 6)),
    ],
)
def test_a_template_that_changes_the_answer_is_refused(source, text, ends):
    with pytest.raises(TemplateError, match="where its steps end is not known"):
        marked(source, text, ends)
