"""No template holds the process up or fills its memory; what templates need still works."""

import pytest

from jaxtrain.chat.sandbox import TemplateError, marks_generation
from jaxtrain.chat.template import ChatTemplate
from jaxtrain.chat.tracked import origins

HELLO = [{"role": "user", "content": "hi"}]
FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}"
ENDS = "{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set n = namespace(x=START) %}{% for i in range(60) %}{% set n.x = STEP %}{% endfor %}"
)


def doubling(start: str, step: str) -> str:
    return DOUBLING.replace("START", start).replace("STEP", step)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (FOREVER + "x" * 99 + ENDS, "more than 50,000,000 characters"),
        (FOREVER + ENDS, "takes more than 5,000,000 steps"),
        ("{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
        ("{{ 'x' * 99999999999 }}", "more than 50,000,000 characters"),
        ("{{ [1] * 99999999999 }}", "more than 50,000,000 characters"),
        ("{{ 9 ** 999999 }}", "a number of more than 1000 digits"),
        (doubling("9", "n.x * n.x"), "a number of more than 1000 digits"),
        (doubling("'ab'", "n.x + n.x"), "more than 50,000,000 characters"),
        (doubling("'ab'", "n.x ~ n.x"), "more than 50,000,000 characters"),
        (doubling("'ab'", "n.x.replace('a', n.x)"), "more than 50,000,000 characters"),
        (doubling("'ab'", "n.x | replace('a', n.x)"), "more than 50,000,000 characters"),
        (doubling("'ab'", "n.x.join(['a', 'b', 'c'])"), "more than 50,000,000 characters"),
        (doubling("[1]", "[n.x, n.x]") + "{{ n.x }}", "more than 50,000,000 characters"),
        (doubling("[1]", "[n.x, n.x]") + "{{ n.x | tojson }}", "more than 50,000,000 characters"),
        ("{{ [[1]] | tojson(indent=999999999) }}", "indents by 999999999 characters"),
        ("{{ 'a\\nb' | indent(999999999) }}", "indents by 999999999 characters"),
        ("{{ 'a' | center(999999999) }}", "No filter named 'center'"),
        ("{{ 'a'.ljust(999999999) }}", "attribute 'ljust'"),
        ("{{ '%999999999d' % 3 }}", "pads a text by the format"),
        ("{{ '%999999999d' | format(3) }}", "pads a text by the format"),
        ("{{ '%*d' % (999999999, 3) }}", "pads a text by the format"),
        ("{{ '{:>999999999}'.format(3) }}", "pads a text by the format"),
        ("{{ '{:>{}}'.format(3, 999999999) }}", "pads a text by the format"),
        ("{{ lipsum(n=999999999) }}", "'lipsum' is undefined"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
    ],
)
def test_a_template_that_would_take_forever_or_all_memory_is_stopped(source, message):
    with pytest.raises(TemplateError, match=message) as caught:
        ChatTemplate(source).render(HELLO)
    assert "\n" not in str(caught.value)


def test_steps_are_counted_for_each_rendering_anew():
    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}{{ messages[0].content }}")
    assert {str(template.render(HELLO)) for _ in range(60)} == {"hi"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'%s: %03d' % ('a', 7)", "a: 007"),
        ("'{}-{x}'.format(1, x=2)", "1-2"),
        ("'%s!' | format('a')", "a!"),
        ("2 ** 10 + 3 * 4", "1036"),
        ("([1] + [2]) | length", "2"),
        ("'ab' * 2 + 'c'", "ababc"),
        ("'a\\nb' | indent(2)", "a\n  b"),
        ("'x,y'.split(',') | last", "y"),
        ("[3, 1] | sort | first", "1"),
    ],
)
def test_what_templates_do_still_works(expression, expected):
    assert ChatTemplate("{{ " + expression + " }}").render(HELLO) == expected


def test_content_put_into_markup_keeps_its_origin():
    source = "{{ 'U: {c}.'.replace('{c}', messages[0].content) }}"
    text = ChatTemplate(source).render(HELLO)
    assert text == "U: hi."
    assert origins(text).tolist() == [-1] * 3 + [0] * 2 + [-1]


def test_marks_generation_looks_for_the_statement():
    assert marks_generation("{% generation %}{% endgeneration %}")
    assert not marks_generation("{{ 'generation' }}")
