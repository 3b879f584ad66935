"""Where chat templates run: Jinja's immutable sandbox, bounded in steps and in memory.

The dialect is the one that Hugging Face templates are written in: trimmed blocks, loop controls,
`raise_exception`, `tojson` as plain JSON, and {% generation %} around what an assistant says. What
makes text out of nothing (padding, lorem ipsum) or differs from run to run (`random`) is left out.
Every loop counts its steps and every operation that makes a longer text looks at its length first:
a hostile template ends with an error, and not the process that reads it.
"""

import functools
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jaxtrain.chat.tracked import MARKUP, MAX_CHARS, TooLong, Tracked, join, joined, strings

MAX_STEPS: Final = 5_000_000  # blocks run by one rendering: some seconds
_MAX_DIGITS: Final = 1000  # of a number
_MAX_INDENT: Final = 100
_PADDING: Final = frozenset(
    {"center", "expandtabs", "format_map", "ljust", "rjust", "translate", "zfill"}
)
_LEFT_OUT: Final = ("center", "filesizeformat", "pprint", "random", "urlize", "wordwrap", "xmlattr")
_WIDTH: Final = re.compile(r"\d{4,}|\*|\{[^}]*\{")  # of a field, or one taken from elsewhere


class TemplateError(ValueError):
    """The template cannot be used, or refuses the conversation; the message says why."""


def run(source: str, context: Mapping[str, Any]) -> Iterator[str]:
    """The pieces that a template writes, as it writes them.

    Raises:
      TemplateError: for a template that is malformed, or takes more than MAX_STEPS.
    """
    template = _compile(source)
    _budget.steps = 0
    return template.root_render_func(template.new_context(dict(context)))


@functools.lru_cache(maxsize=32)
def marks_generation(source: str) -> bool:
    """Whether a template has {% generation %}."""
    calls = _environment().parse(source).find_all(nodes.ExtensionAttribute)
    return any(call.identifier == _Generation.identifier for call in calls)


class _Budget(threading.local):
    steps = 0


_budget = _Budget()


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 — Jinja's form

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> Tracked:
        return join([caller()]).as_generation()


class _Generator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """`a ~ b` by the environment's concatenation, as everything else that Jinja joins."""
        self.write("environment.concat((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")

    def blockvisit(self, nodes: Any, frame: Frame) -> None:
        """The body of a loop, a condition or a macro, counted each time that it runs."""
        self.writeline("environment.tick()")
        super().blockvisit(nodes, frame)


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    concat = staticmethod(join)
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def tick(self) -> None:
        _budget.steps += 1
        if _budget.steps > MAX_STEPS:
            raise TemplateError(f"takes more than {MAX_STEPS:,} steps")

    def getattr(self, obj: Any, attribute: str) -> Any:
        return super().getattr(Tracked(obj, MARKUP) if type(obj) is str else obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        padding = isinstance(obj, str) and attr in _PADDING
        return not padding and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"attribute {attribute!r} of a {type(obj).__name__}")

    def wrap_str_format(self, value: Any) -> Any:
        """`str.format` in the sandbox, of plain text: what it puts in is not told apart."""
        text = getattr(value, "__self__", None)
        if isinstance(text, Tracked) and value.__name__ == "format":
            _check_widths(text)
            value = str.__str__(text).format
        return super().wrap_str_format(value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_size(operator, left, right)
        return super().call_binop(context, operator, left, right)


@functools.cache
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
        cache_size=0,
        finalize=_printed,
    )
    del environment.globals["lipsum"]
    for name in _LEFT_OUT:
        del environment.filters[name]
    environment.globals["raise_exception"] = _refuse
    environment.filters |= {
        "format": _format,
        "indent": functools.partial(_indent, environment.filters["indent"]),
        "join": _join,
        "replace": _replace,
        "tojson": _to_json,
        "trim": _trim,
    }
    return environment


@functools.lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"line {error.lineno}: {error.message}") from error


def _printed(value: Any) -> Any:
    return join([value]) if isinstance(value, (dict, list, tuple)) else value


def _check_size(operator: str, left: Any, right: Any) -> None:
    """Refuses an operation whose result would not fit, before it is made."""
    if operator == "%" and isinstance(left, str):
        _check_widths(left)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * abs(right) > 3 * _MAX_DIGITS:
            raise TemplateError(f"makes a number of more than {_MAX_DIGITS} digits")
    elif operator == "+" and isinstance(left, Sequence) and isinstance(right, Sequence):
        _check_length(len(left) + len(right))
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, Sequence) and isinstance(times, int):
                _check_length(len(many) * times)
        if isinstance(left, int) and isinstance(right, int):
            _check_size("**", max(abs(left), abs(right)), 2)


def _check_length(length: int) -> None:
    if length > MAX_CHARS:
        raise TooLong


def _check_widths(text: str) -> None:
    if _WIDTH.search(text):
        raise TemplateError(f"pads a text by the format {text[:100]!r}")


def _refuse(message: str) -> NoReturn:
    raise TemplateError(f"refuses the conversation: {message}")


def _to_json(value: Any, indent: int | None = None, **_: Any) -> Tracked:
    """JSON of message content is content, its brackets too: a value may hold any text."""
    tags = {tag for each in strings(value) for tag in each.tags[:1]}
    text = json.dumps(value, ensure_ascii=False, indent=_checked_indent(indent))
    return Tracked(text, min(tags)) if tags else join([text])


def _checked_indent(indent: Any) -> Any:
    if isinstance(indent, int) and indent > _MAX_INDENT:
        raise TemplateError(f"indents by {indent} characters, more than {_MAX_INDENT}")
    return indent


def _indent(indent: Any, text: str, width: Any = 4, *options: Any, **named: Any) -> str:
    return indent(text, _checked_indent(width), *options, **named)


def _format(text: str, *values: Any, **named: Any) -> str:
    _check_widths(text)
    return str(text) % (named or values)


def _join(value: Any, d: str = "", attribute: str | None = None) -> Tracked:
    items = [each[attribute] for each in value] if attribute else value
    return joined(d, items)


def _trim(value: Any, chars: str | None = None) -> str:
    return str(value).strip(chars)


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    return Tracked.of(value).replace(str(old), str(new), count)
