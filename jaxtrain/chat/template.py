"""A chat template (Jinja) run on a conversation, with the origin of every character of the result.

Templates come with models from strangers: they run in a sandbox (`sandbox.py`), see nothing but the
conversation, and have no clock, so that the same conversation always gives the same text. One that
asks for the date gets the one that the option `strftime_now` names, as YYYY-MM-DD.
"""

import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError, UndefinedError

from jaxtrain.chat import sandbox
from jaxtrain.chat.sandbox import TemplateError
from jaxtrain.chat.tracked import MAX_CHARS, TooLong, Tracked, join, tag_of, tracked

_CLOCK = "strftime_now"


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
          options: further variables (`enable_thinking`); what they say is content, as tools are.

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
        beside = tag_of(len(messages))
        context = dict(self.variables) | tracked(dict(options or {}), beside)
        if _CLOCK in context:
            context[_CLOCK] = _clock(context[_CLOCK])
        context |= {"messages": tagged, "add_generation_prompt": add_generation_prompt}
        if tools:
            context["tools"] = tracked(list(tools), beside)
        try:
            return _limited(sandbox.run(self.source, context))
        except (TemplateError, TooLong) as error:
            raise TemplateError(f"chat template: {error}") from error
        except SecurityError as error:
            raise TemplateError(f"chat template reaches for what it must not: {error}") from error
        except UndefinedError as error:
            if str(error) == f"{_CLOCK!r} is undefined":
                raise TemplateError(
                    f"chat template asks for the date, and has no clock here; give it one by the "
                    f"template option {_CLOCK}='YYYY-MM-DD'"
                ) from error
            raise TemplateError(f"chat template fails: UndefinedError: {error}") from error
        except Exception as error:  # whatever the template's expressions raise on these messages
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise TemplateError(f"chat template fails: {what}") from error

    @property
    def marks_generation(self) -> bool:
        """Whether the template itself says what an assistant generates."""
        return sandbox.marks_generation(self.source)


def _limited(pieces: Any) -> Tracked:
    kept, length = [], 0
    for piece in pieces:
        kept.append(piece)
        length += len(piece)
        if length > MAX_CHARS:  # before they are joined: an endless template has no last piece
            raise TooLong
    return join(kept)


def _clock(date: Any) -> Callable[[str], str]:
    try:
        day = datetime.datetime.fromisoformat(str(date))
    except ValueError as error:
        raise TemplateError(
            f"template option {_CLOCK}={date!r} must be a date as YYYY-MM-DD"
        ) from error
    return day.strftime
