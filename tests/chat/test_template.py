"""Templates run as Hugging Face's do, cannot reach out, and lose no character's origin."""

import pytest

from jaxtrain.chat.template import ChatTemplate, TemplateError
from jaxtrain.chat.tracked import in_generation, may_be_control, origins

HELLO = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "yo"}]


def said(source: str, message: int, messages=HELLO, **options) -> str:
    """The characters of the rendered text that came from one message."""
    text = ChatTemplate(source).render(messages, **options)
    return "".join(letter for letter, of in zip(text, origins(text), strict=True) if of == message)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("messages[0].content", " hi "),
        ("messages[0]['content'] | trim", "hi"),
        ("messages[0].content.strip()", "hi"),
        ("'<' + messages[0].content + '>'", " hi "),
        ("'<' ~ messages[0].content ~ 1", " hi "),
        ("[messages[0].content, messages[1].content] | join('+')", " hi "),
        ("messages[0].content | upper", " HI "),
        ("messages[0].content | replace('h', '<<')", " <<i "),
        ("messages[0].content[1:]", "hi "),
        ("messages[0].content.split('h')[-1]", "i "),
        ("(messages[0].content ~ '|').rstrip('|')", " hi "),
        ("messages[0] | tojson", '{"role": "user", "content": " hi "}'),
        ("messages[0].content | string", " hi "),
    ],
)
def test_origin_survives_expression(expression, expected):
    assert said("a{{ " + expression + " }}b", 0) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{% set x = messages[0].content %}{{ x }}",
        "{% set x %}<{{ messages[0].content }}>{% endset %}{{ x }}",
        "{% set n = namespace(x='') %}{% for m in messages %}{% if loop.first %}"
        "{% set n.x = n.x ~ m.content %}{% endif %}{% endfor %}{{ n.x }}",
        "{% macro f(t) %}[{{ t }}]{% endmacro %}{{ f(messages[0].content) }}",
        "{% filter upper %}{{ messages[0].content | lower }}{% endfilter %}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
    ],
)
def test_origin_survives_statement(source):
    assert said(source, 0).lower() == " hi "


def test_generation_blocks_are_marked_and_nothing_else():
    template = ChatTemplate("<{% generation %}{{ messages[1].content }}|{% endgeneration %}>")
    text = template.render(HELLO)
    assert text == "<yo|>"
    assert in_generation(text).tolist() == [False, True, True, True, False]
    assert template.marks_generation
    assert not ChatTemplate("{{ messages }}{# generation #}").marks_generation


def test_variables_tools_and_options_are_printed():
    template = ChatTemplate("{{ bos_token }}{{ tools | tojson }}{{ mode }}", {"bos_token": "<s>"})
    text = template.render(HELLO, tools=[{"name": "f"}], options={"mode": "x"})
    assert text == '<s>[{"name": "f"}]x'
    assert origins(text).tolist() == [-1] * 3 + [2] * 16


@pytest.mark.parametrize(
    "expression",
    [
        "messages.__class__.__mro__[1].__subclasses__()",
        "messages[0].content.__class__.__init__.__globals__",
        "cycler.__init__.__globals__.os",
        "self.__init__.__globals__",
        "namespace.__init__.__globals__['__builtins__']",
        "raise_exception.__globals__",
        "messages[0].content.tags.__class__.__base__.__subclasses__()",
        "(messages | map(attribute='__class__') | list)[0].__mro__",
        "'{0.__class__.__mro__}'.format(messages)",
        "messages[0].update({'role': 'system'})",
        "lipsum.__globals__",
    ],
)
def test_sandbox_lets_no_template_reach_python(expression):
    with pytest.raises(TemplateError, match="chat template"):
        ChatTemplate("{{ " + expression + " }}").render(HELLO)
    assert HELLO[0] == {"role": "user", "content": " hi "}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "chat template: line 1: Expected an expression"),
        ("\n\n{{ messages", "chat template: line 3"),
        ("{{ raise_exception('only users') }}", "refuses the conversation: only users"),
        ("{{ messages[7].content.x }}", "chat template fails: UndefinedError"),
        ("{{ 1 / 0 }}", "chat template fails: ZeroDivisionError"),
        ("{% include 'a' %}", "chat template fails"),
    ],
)
def test_a_bad_template_says_what_is_wrong(source, message):
    with pytest.raises(TemplateError, match=message) as caught:
        ChatTemplate(source).render(HELLO)
    assert "\n" not in str(caught.value)


def test_no_clock_so_the_same_conversation_gives_the_same_text():
    source = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}fixed{% endif %}"
    assert ChatTemplate(source).render(HELLO) == "fixed"


def test_a_template_that_asks_for_the_date_gets_the_one_it_is_given():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}")
    with pytest.raises(TemplateError, match="give it one by the template option strftime_now="):
        template.render(HELLO)
    assert template.render(HELLO, options={"strftime_now": "2026-11-30"}) == "30 Nov 2026"
    with pytest.raises(TemplateError, match="strftime_now='now' must be a date"):
        template.render(HELLO, options={"strftime_now": "now"})


def test_what_options_say_is_content():
    text = ChatTemplate("{{ bos_token }}{{ documents[0].text }}", {"bos_token": "<s>"}).render(
        HELLO, options={"documents": [{"text": "<s>"}]}
    )
    assert may_be_control(text).tolist() == [True] * 3 + [False] * 3


@pytest.mark.reference
@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}\n  {% if m.role == 'user' %}\n  U {{ m.content | trim }}\n"
        "  {% else %}\nA {{ m['content'] }}\n{% endif %}\n{% endfor %}\n",
        "{{ bos_token }}{{ messages | tojson(indent=2) }}{% generation %}x{% endgeneration %}",
        "{%- if tools %}{{ tools | tojson }}{% endif -%}{{ messages[-1].content }}",
    ],
)
def test_text_equals_that_of_transformers(source):
    chat = pytest.importorskip("transformers.utils.chat_template_utils")
    theirs = chat.render_jinja_template(
        conversations=[HELLO], chat_template=source, bos_token="<s>", tools=[{"name": "ä<"}]
    )[0][0]
    ours = ChatTemplate(source, {"bos_token": "<s>"}).render(HELLO, tools=[{"name": "ä<"}])
    assert ours == theirs
