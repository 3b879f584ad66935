"""The forms in which people have preferences, brought into one: a prompt, and answers best first.

    pairs     {"chosen", "rejected", "margin"? or "score_chosen", "score_rejected"}
    labels    {"completion" or "response", "label"}, or a conversation with "label" (of its end)
    ranked    {"responses" or "answers"}: best first, or with "scores" (the higher the better) or
              "ranks" (the lower)
    steps     {"completions", "labels"}: the steps of one answer, and whether each is right

The prompt stands in `prompt` (a text, or messages), in ShareGPT's `conversations`, in Alpaca's
`instruction` and `input`, or in `messages`. Pairs may have none: then each answer is a whole
conversation (messages, or a transcript with "Human:" and "Assistant:"), and what both begin with is
the prompt. An answer is a text, a message, or several: an assistant's, and tools' between them.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from jaxtrain.conversations import forms
from jaxtrain.conversations.forms import FLOAT32_MAX, BadRow, Dropped, Message

PAIRS, RANKS, LABELS, STEPS = "pairs", "ranks", "labels", "steps"
STEP_SEPARATOR: Final = "\n"

_ANSWERING: Final = ("assistant", "tool")
_SPEAKER = re.compile(r"\n\n(Human|Assistant):[ ]?")
_SPEAKERS: Final = {"Human": "user", "Assistant": "assistant"}
_ANSWER_KEYS: Final = ("completion", "response", "output")
_LIST_KEYS: Final = ("responses", "answers")
_WHOLE_KEYS: Final = ("conversations", "messages")
_PROMPT_KEYS: Final = ("prompt", "conversations", "instruction", "messages")

_Record = Mapping[str, Any]


class Comparison(NamedTuple):
    """A prompt, and what is known of answers to it."""

    kind: str  # PAIRS, RANKS, LABELS or STEPS
    prompt: list[Message]  # as templates read them
    answers: list[list[Message]]  # best first
    values: tuple[float, ...]  # of each answer: a pair's margin, a score, a label of 1 or -1; or 0
    tools: list[Any] | None = None
    places: tuple[int, ...] = ()  # of each ranked answer, from 0; the same where they are tied
    step_ends: tuple[int, ...] = ()  # of the one answer's steps, in characters
    step_labels: tuple[bool, ...] = ()


def read(record: _Record, form: str | None = None, separator: str = STEP_SEPARATOR) -> Comparison:
    """The comparison in a row.

    Args:
      form: a key of FORMS; None: whichever the row's keys say.
      separator: text between the steps of an answer; it belongs to the step that it ends.

    Raises:
      BadRow: where it is none.
      Dropped: where it is one that prefers nothing.
    """
    found = forms.read_as(record, FORMS, form)
    return _with_joined_steps(found, separator) if found.kind == STEPS else found


def read_answer(record: _Record) -> Comparison:
    """A prompt and its one answer, of which nothing is known: what a reward model is to score.

    Raises:
      BadRow: where the row has no such thing.
    """
    return forms.read_as(record, {"answer": (_has_answer, _of_answer)}, None)


def read_steps(record: _Record, separator: str = STEP_SEPARATOR) -> Comparison:
    """A prompt and the steps of its one answer, of which nothing is known: likewise.

    Raises:
      BadRow: where the row has no such thing.
    """
    form = {STEPS: (lambda record: "completions" in record, _of_unjudged_steps)}
    return _with_joined_steps(forms.read_as(record, form, None), separator)


def _of_pair(record: _Record) -> Comparison:
    prompt = _own_prompt(record)
    chosen, rejected = (_answer(record[key], key) for key in ("chosen", "rejected"))
    if prompt is None or any(side[0]["role"] not in _ANSWERING for side in (chosen, rejected)):
        shared, chosen, rejected = _split(chosen, rejected)
        if prompt is not None and shared[-len(prompt) :] != prompt:
            raise BadRow(
                "two prompts", "has a prompt, and answers that are conversations with another one"
            )
        prompt = shared
    return _comparison(PAIRS, record, prompt, [chosen, rejected], (_margin(record), 0.0))


def _of_label(record: _Record) -> Comparison:
    label = record["label"]
    if label not in (0, 1) or not isinstance(label, (bool, int)):
        raise BadRow("bad label", f"has label={label!r}; it must be true or false")
    return _of_answer(record)._replace(kind=LABELS, values=(1.0 if label else -1.0,))


def _of_answer(record: _Record) -> Comparison:
    key = next((key for key in _ANSWER_KEYS if key in record), None)
    if key and ("prompt" in record or "instruction" in record):
        prompt, answer = _own_prompt(record) or [], _answer(record[key], key)
        if answer[0]["role"] not in _ANSWERING:  # the prompt again, before the answer
            shared, answer = _parted(answer)
            if shared[-len(prompt) :] != prompt:
                raise BadRow("two prompts", f"has a prompt, and a {key} that begins with another")
            prompt = shared
    else:
        whole = {key: record[key] for key in (*_WHOLE_KEYS, "system") if key in record}
        prompt, answer = _parted(_own_prompt(whole) or [])
    return _comparison(LABELS, record, prompt, [answer], (0.0,))


def _of_ranked(record: _Record) -> Comparison:
    key = next(key for key in _LIST_KEYS if key in record)
    given = record[key]
    if not isinstance(given, list) or len(given) < 2:
        raise BadRow("too few answers", f"must have two {key} or more, in a list")
    answers = [_answer(each, f"{key}[{number}]") for number, each in enumerate(given)]
    scores, ranks = (_numbers(record, name, len(given)) for name in ("scores", "ranks"))
    if scores and ranks:
        raise BadRow("bad score", "has both scores and ranks; leave one out")
    keys = ranks or [-score for score in scores or ()] or list(range(len(given)))
    order = sorted(range(len(given)), key=keys.__getitem__)
    distinct = sorted(set(keys))
    return _comparison(
        RANKS,
        record,
        _needed_prompt(record),
        [answers[at] for at in order],
        tuple(scores[at] if scores else 0.0 for at in order),
    )._replace(places=tuple(distinct.index(keys[at]) for at in order))


def _of_steps(record: _Record) -> Comparison:
    found, labels = _of_unjudged_steps(record), record["labels"]
    (steps,) = found.answers
    if not isinstance(labels, list) or any(
        label not in (0, 1) or not isinstance(label, (bool, int)) for label in labels
    ):
        raise BadRow("bad label", "has labels that are not a list of true and false")
    if len(steps) != len(labels):
        raise BadRow("bad label", f"has {len(steps)} steps and {len(labels)} labels")
    return found._replace(step_labels=tuple(map(bool, labels)))


def _of_unjudged_steps(record: _Record) -> Comparison:
    steps = record["completions"]
    if not isinstance(steps, list) or not all(isinstance(step, str) for step in steps) or not steps:
        raise BadRow("bad steps", "has completions that are not a list of texts")
    if not all(step.strip() for step in steps):
        raise BadRow("empty answer", "has a step that says nothing")
    answer = [{"role": "assistant", "content": step} for step in steps]
    return _comparison(STEPS, record, _needed_prompt(record), [answer], (0.0,))


def _with_joined_steps(comparison: Comparison, separator: str) -> Comparison:
    """The steps as one message, and where each ends in it."""
    *before, last = [message["content"] for message in comparison.answers[0]]
    pieces = [step + separator for step in before] + [last]
    answer: Message = {"role": "assistant", "content": "".join(pieces)}
    ends = tuple(itertools.accumulate(map(len, pieces)))
    return comparison._replace(answers=[[answer]], step_ends=ends)


def _has_answer(record: _Record) -> bool:
    is_parted = any(key in record for key in ("prompt", "instruction"))
    has_key = any(key in record for key in _ANSWER_KEYS)
    return (is_parted and has_key) or any(key in record for key in _WHOLE_KEYS)


#: Name → (whether a row's keys are those of the form, the comparison in it).
FORMS: Final[Mapping[str, tuple[forms.Fits, Callable[[_Record], Comparison]]]] = {
    "pairs": (lambda record: "chosen" in record and "rejected" in record, _of_pair),
    "labels": (lambda record: "label" in record and _has_answer(record), _of_label),
    "ranked": (lambda record: any(key in record for key in _LIST_KEYS), _of_ranked),
    "steps": (lambda record: "completions" in record and "labels" in record, _of_steps),
}


def _comparison(
    kind: str,
    record: _Record,
    prompt: list[Message],
    answers: Sequence[list[Message]],
    values: tuple[float, ...],
) -> Comparison:
    if not prompt:
        raise BadRow("no prompt", "has answers and nothing before them")
    for answer in answers:
        wrong = [message["role"] for message in answer if message["role"] not in _ANSWERING]
        if wrong or not answer or not answer[0]["role"] == answer[-1]["role"] == "assistant":
            roles = ", ".join(message["role"] for message in answer) or "none"
            raise BadRow(
                "bad answer",
                f"has an answer of messages by {roles}; it must begin and end with an assistant's, "
                "with none but tools' between",
            )
    return Comparison(kind, prompt, list(answers), values, forms.tools_of(record.get("tools")))


def _needed_prompt(record: _Record) -> list[Message]:
    return _own_prompt(record) or []


def _own_prompt(record: _Record) -> list[Message] | None:
    """What a row has before its answers, or None."""
    key = next((key for key in _PROMPT_KEYS if key in record), None)
    if key is None:
        return None
    value = record[key]
    if key == "instruction":
        return _normalized(forms.alpaca_prompt(record), key)
    if key == "conversations":
        messages = forms.sharegpt_messages(value, key)
    elif isinstance(value, str) and _is_transcript(value):
        messages = _transcript(value)
        if messages[-1] == {"role": "assistant", "content": ""}:  # where the answer is to begin
            del messages[-1]
    else:
        messages = forms.prompt_messages(value)
    return _normalized(forms.system_message(record) + messages, key)


def _answer(value: Any, key: str) -> list[Message]:
    """An answer's messages; of a transcript or a whole conversation, all of it."""
    if isinstance(value, str):
        if _is_transcript(value):
            return _normalized(_transcript(value), key)
        return [{"role": "assistant", "content": value}]
    listed = [value] if isinstance(value, Mapping) else value
    if isinstance(listed, list) and listed and isinstance(listed[0], Mapping):
        if "from" in listed[0]:
            return _normalized(forms.sharegpt_messages(listed, key), key)
        return _normalized(forms.plain_messages(listed), key)
    raise BadRow("bad messages", f"has a {key} that is no text, no message and no list of them")


def _normalized(messages: list[Message], key: str) -> list[Message]:
    try:
        return forms.normalized(messages)
    except ValueError as error:
        raise BadRow("bad messages", f"{key}: {error}") from error


def _is_transcript(text: str) -> bool:
    return text.startswith("\n\nHuman:")


def _transcript(text: str) -> list[Message]:
    """The turns of "\\n\\nHuman: …\\n\\nAssistant: …"."""
    _, *pieces = _SPEAKER.split(text)
    return [
        {"role": _SPEAKERS[speaker], "content": said}
        for speaker, said in zip(pieces[::2], pieces[1::2], strict=True)
    ]


def _parted(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """A conversation as its prompt and its last answer."""
    at = len(messages)
    while at and messages[at - 1]["role"] in _ANSWERING:
        at -= 1
    if at == len(messages):
        raise BadRow("no answer", "has no answer at its end")
    return messages[:at], messages[at:]


def _split(
    chosen: list[Message], rejected: list[Message]
) -> tuple[list[Message], list[Message], list[Message]]:
    """Two conversations as the prompt that they share and the last answer of each."""
    if chosen == rejected:
        raise Dropped("equal answers")
    prompts, answers = zip(*map(_parted, (chosen, rejected)), strict=True)
    if prompts[0] != prompts[1]:
        raise BadRow("two prompts", "has answers to two different prompts")
    at = 0  # what both answers begin with, an assistant's call and the tool's answer, is read only
    while at < min(map(len, answers)) - 1 and answers[0][at] == answers[1][at]:
        at += 1
    while at and any(answer[at]["role"] != "assistant" for answer in answers):
        at -= 1
    return prompts[0] + answers[0][:at], answers[0][at:], answers[1][at:]


def _margin(record: _Record) -> float:
    """By how much the chosen answer is the better; 0 where the row does not say."""
    if "margin" in record:
        margin = _number(record["margin"], "margin")
        if margin < 0:
            raise BadRow("bad score", f"has margin={margin}; it must be at least 0")
        return margin
    keys = [key for key in ("score_chosen", "score_rejected") if key in record]
    if len(keys) < 2:
        if keys:
            raise BadRow("bad score", f"has {keys[0]} without the other's")
        return 0.0
    chosen, rejected = (_number(record[key], key) for key in keys)
    if chosen == rejected:
        raise Dropped("tied scores")
    if chosen < rejected:
        raise Dropped("the rejected answer has the higher score")
    return _number(chosen - rejected, "score_chosen - score_rejected")


def _numbers(record: _Record, name: str, length: int) -> list[float] | None:
    if name not in record:
        return None
    given = record[name]
    if not isinstance(given, list) or len(given) != length:
        raise BadRow("bad score", f"must have {length} {name}, one for each answer, in a list")
    return [_number(value, f"{name}[{number}]") for number, value in enumerate(given)]


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise BadRow("bad score", f"has {where}={value!r}, which is no number")
    if abs(value) > FLOAT32_MAX:
        raise BadRow("bad score", f"has a {where} beyond ±{FLOAT32_MAX:.3g}, what float32 holds")
    return float(value)
