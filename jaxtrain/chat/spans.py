"""Where in a rendered conversation the words of each assistant message are.

The template says so itself ({% generation %}), or it is found from rendering the conversation turn
by turn: they begin where the generation prompt ends and go through the control token that ends a
plain answer's turn. A template that allows neither is refused with the reason.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxtrain.chat.template import TemplateError
from jaxtrain.chat.template_run import ASSISTANT, Message, TemplateRun
from jaxtrain.chat.tracked import Tracked, in_generation, origins, places


class Span(NamedTuple):
    """Characters `start:stop` are what assistant message `message` says."""

    start: int
    stop: int
    message: int


def find_spans(messages: Sequence[Message], text: Tracked, run: TemplateRun) -> list[Span]:
    """What each assistant message says in `text`, in order.

    Raises:
      TemplateError: where the template does not tell.
    """
    turns = [index for index, message in enumerate(messages) if message["role"] == ASSISTANT]
    if run.template.marks_generation:
        return _marked_spans(turns, text)
    return [_found_span(messages, index, text, run) for index in turns]


def _marked_spans(turns: Sequence[int], text: Tracked) -> list[Span]:
    edges = np.diff(in_generation(text).astype(np.int8), prepend=0, append=0)
    starts, stops = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
    if len(starts) != len(turns):
        raise TemplateError(
            f"the chat template marks {len(starts)} stretches with {{% generation %}} for "
            f"{len(turns)} assistant messages; each must have one of its own"
        )
    return [Span(*each) for each in zip(starts, stops, turns, strict=True)]


def _found_span(messages: Sequence[Message], index: int, text: Tracked, run: TemplateRun) -> Span:
    """The span of one assistant message of a template that does not mark it."""
    start = _beginning(messages, index, text, run)
    said = places(text, index)
    stop = said[-1] + 1 if said else start
    alone = run.text(messages[: index + 1])
    said_alone = places(alone, index)
    ending = alone[said_alone[-1] + 1 if said_alone else start :]
    ending = _through_turn_end(ending, run)
    if stop < start or text[stop : stop + len(ending)] != ending:
        raise TemplateError(
            f"the chat template ends assistant message {index} otherwise when more messages "
            "follow, so what a model should learn to write is not defined; mark it in the "
            "template with {% generation %}"
        )
    return Span(start, stop + len(ending), index)


def _through_turn_end(ending: Tracked, run: TemplateRun) -> Tracked:
    """What follows an answer up to the token that ends the turn; all of it where there is none."""
    controls = list(run.controls(ending))
    if len({word for _, _, word in controls}) > 1:  # the end of a thought or of a call comes first
        end = run.turn_end()
        controls = [each for each in controls if each[2] == end] or controls
    return ending[: controls[0][1]] if controls else ending


def _beginning(messages: Sequence[Message], index: int, text: Tracked, run: TemplateRun) -> int:
    """Where the generation prompt of an assistant message ends."""
    before = run.text(messages[:index])
    prompt = run.text(messages[:index], prompt=True)
    said = places(text, index)
    if text.startswith(prompt) and (not said or said[0] >= len(prompt)):
        return len(prompt)
    header = prompt.removeprefix(before)
    origin = origins(text)
    low = 1 + max(np.flatnonzero((origin >= 0) & (origin < index)), default=-1)
    at = text.rfind(header, low, said[0]) if said and prompt.startswith(before) and header else -1
    if at < 0:
        raise TemplateError(
            f"what the chat template writes before assistant message {index} is not what it writes "
            "with add_generation_prompt, so where the answer begins is not defined; mark it in the "
            "template with {% generation %}"
        )
    return at + len(header)
