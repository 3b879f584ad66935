"""A chat template (Jinja) run in a sandbox, with the origin of every character of the result.

Templates come with models from strangers: they run in Jinja's immutable sandbox, see nothing but
the conversation, and have no clock, so that the same conversation always gives the same text. The
dialect is the one that Hugging Face templates are written in: trimmed blocks, loop controls,
`raise_exception`, `tojson` as plain JSON, and {% generation %} around what an assistant says.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jaxtrain.chat.tracked import Tracked, join, joined, tag_of, tracked

MAX_CHARS = 50_000_000  # of one rendered conversation; a template that loops would fill the memory


class TemplateError(ValueError):
    """The template cannot be used, or refuses the conversation; the message says why."""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """Source of a template and the variables that it may print, such as bos_token."""

    source: str
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Tracked:
        """The text of a conversation, each character with the message that it came from.

        Args:
          messages: dicts with a `role` and whatever else the template reads.
          tools: JSON schemas of functions; their text counts as message number len(messages).
          add_generation_prompt: end with what comes before an assistant's answer.
          options: further variables (`enable_thinking`).

        Raises:
          TemplateError: for a template that is malformed, reaches for what the sandbox forbids, or
            refuses this conversation.
        """
        # A role is compared with names and printed as one: markup. All else is what people wrote.
        tagged = [
            {
                key: str(value) if key == "role" else tracked(value, tag_of(index))
                for key, value in message.items()
            }
            for index, message in enumerate(messages)
        ]
        context = dict(self.variables) | dict(options or {})
        context |= {"messages": tagged, "add_generation_prompt": add_generation_prompt}
        if tools:
            context["tools"] = tracked(list(tools), tag_of(len(messages)))
        template = _compile(self.source)
        try:
            pieces, length = [], 0
            for piece in template.root_render_func(template.new_context(context)):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_CHARS:
                    raise TemplateError(f"writes more than {MAX_CHARS:,} characters")
            return join(pieces)
        except TemplateError as error:
            raise TemplateError(f"chat template: {error}") from error
        except SecurityError as error:
            raise TemplateError(f"chat template reaches for what it must not: {error}") from error
        except Exception as error:  # whatever the template's expressions raise on these messages
            raise TemplateError(f"chat template fails: {type(error).__name__}: {error}") from error

    @property
    def marks_generation(self) -> bool:
        """Whether the template itself says what an assistant generates."""
        calls = _environment().parse(self.source).find_all(nodes.ExtensionAttribute)
        return any(call.identifier == _Generation.identifier for call in calls)


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 — Jinja's form

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> Tracked:
        return join([caller()]).as_generation()


class _KeepsOrigin(CodeGenerator):
    """`a ~ b` by the environment's concatenation, as everything else that Jinja joins."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _KeepsOrigin
    concat = staticmethod(join)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"attribute {attribute!r} of a {type(obj).__name__}")


@functools.cache
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
        cache_size=0,
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _to_json
    environment.filters["join"] = _join
    environment.filters["trim"] = _trim
    environment.filters["replace"] = _replace
    return environment


@functools.lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(f"refuses the conversation: {message}")


def _to_json(value: Any, indent: int | None = None, **_: Any) -> Tracked:
    """JSON of message content is content, its brackets too: a value may hold any text."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    tags = {tag for each in _strings(value) for tag in each.tags[:1]}
    return Tracked(text, min(tags)) if tags else join([text])


def _strings(value: Any) -> list[Tracked]:
    if isinstance(value, Tracked):
        return [value]
    children = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, str) or not isinstance(value, (Mapping, list, tuple)):
        return []
    return [found for child in children for found in _strings(child)]


def _join(value: Any, d: str = "", attribute: str | None = None) -> Tracked:
    items = [each[attribute] for each in value] if attribute else value
    return joined(d, items)


def _trim(value: Any, chars: str | None = None) -> str:
    return str(value).strip(chars)


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    return str(value).replace(str(old), str(new), count)
