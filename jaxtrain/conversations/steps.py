"""Where the steps of an answer are in what a template made of it: for rewards of each step."""

import itertools
from collections.abc import Sequence

import numpy as np

from jaxtrain.chat.render import Mark
from jaxtrain.chat.spans import Span
from jaxtrain.chat.template import TemplateError
from jaxtrain.chat.template_run import Message
from jaxtrain.chat.tracked import Tracked, places


def mark_steps(ends: Sequence[int]) -> Mark:
    """Numbers the steps of the last message from 1, so that a token ends where a step does.

    Args:
      ends: of the steps in the message's content, in characters.
    """

    def mark(messages: Sequence[Message], text: Tracked, spans: Sequence[Span]) -> np.ndarray:
        del spans
        where = places(text, len(messages) - 1)
        plain, content = str.__str__(text), str(messages[-1]["content"])
        said = "".join(plain[at] for at in where)
        num_stripped = content.find(said)  # blanks at its beginning, by some templates
        edges = np.clip(np.array([0, *ends]) - num_stripped, 0, len(where)).tolist()
        marks = np.zeros(len(plain), np.int32)
        for number, (start, stop) in enumerate(itertools.pairwise(edges), 1):
            if num_stripped < 0 or start == stop:
                raise TemplateError(
                    "the chat template changes the answer, so that where its steps end is not known"
                )
            marks[where[start:stop]] = number
        return marks

    return mark
