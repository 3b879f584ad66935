"""A teacher's answers as rows to train on: what goes into a row, and what is left out and why.

    {…, "messages": [the conversation, its answer], "tools"?, …}
    {…, "text": the prompt and what follows, …}                  with plain prompts

and in both "teacher", "sampling", "sample" (which of several) and "finish". They are forms that
`tokenize chat` reads; other keys of the prompt's row are kept. What was said before is read and not
trained, as the teacher did not say it.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jaxtrain.conversations import forms

Row = Mapping[str, Any]
_FLAGS: Final = ("train", "weight")
_THOUGHTS: Final = ("reasoning_content", "reasoning")  # the names that servers give them
_CUT: Final = "length"

CUT, EMPTY = "cut at its length", "empty"
WITHHELD, REFUSED, GIVEN_UP = "withheld by the server", "refused by the server", "given up"


@dataclasses.dataclass(frozen=True)
class Form:
    """Args:
    plain: prompts are texts to go on with, and no one's message.
    keep_cut: answers that reached their length are kept.
    """

    plain: bool
    keep_cut: bool

    def conversation(self, row: Row) -> list[dict[str, Any]]:
        """What the teacher is asked.

        Raises:
          ValueError: where it does not end with something to answer.
        """
        messages = row.get("messages")
        if messages is None:
            return [{"role": "user", "content": row["prompt"]}]
        if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
            raise ValueError("messages must be a list of objects with role and content")
        if not messages or messages[-1].get("role") == "assistant":
            raise ValueError("messages must end with what an assistant is to answer")
        return [{k: v for k, v in each.items() if k not in _FLAGS} for each in messages]

    def check(self, row: Row) -> None:
        """Raises a ValueError where a row would not be read with an answer in it."""
        if self.plain and "prompt" not in row:
            raise ValueError("has messages; with --plain every row is a prompt, a text")
        if "prompt" in row and not isinstance(row["prompt"], str):
            raise ValueError(f"prompt must be a text, not {type(row['prompt']).__name__}")
        self.conversation(row)
        forms.read(self.row(row, {"message": {"role": "assistant", "content": "."}}, {}))

    def row(self, row: Row, answer: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
        """The prompt's row with an answer, and what else there is to be said of it."""
        kept = {key: value for key, value in row.items() if key not in ("prompt", "messages")}
        message = said(answer)
        if self.plain:
            return {**kept, "text": row["prompt"] + message["content"], **about}
        before = [_read_only(each) for each in row.get("messages") or self.conversation(row)]
        return {**kept, "messages": [*before, message], **about}

    def fault(self, answer: Mapping[str, Any]) -> str | None:
        """Why an answer is left out; None: it is not."""
        if "refused" in answer:
            return REFUSED
        message = said(answer)
        if answer["finish"] == "content_filter" or answer["message"].get("refusal"):
            return WITHHELD
        if answer["finish"] == _CUT and not self.keep_cut:
            return CUT
        return None if message["content"].strip() or "tool_calls" in message else EMPTY


def said(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An assistant's message: its text, thoughts and calls, and nothing else a server adds."""
    given = answer["message"]
    message = {"role": "assistant", "content": given.get("content") or ""}
    thoughts = next((given[name] for name in _THOUGHTS if given.get(name)), None)
    if thoughts is not None:
        message["reasoning_content"] = thoughts
    if given.get("tool_calls"):
        message["tool_calls"] = given["tool_calls"]
    return message


def _read_only(message: Mapping[str, Any]) -> dict[str, Any]:
    is_told = message.get("role") != "assistant" or any(
        message.get(flag) is not None for flag in _FLAGS
    )
    return dict(message) if is_told else dict(message) | {"train": False}


@dataclasses.dataclass
class Sorted:
    """Rows to train on, rows that are left out, and how many for which reason."""

    rows: list[Row] = dataclasses.field(default_factory=list)
    left_out: list[Row] = dataclasses.field(default_factory=list)
    reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def leave_out(self, row: Row, reason: str, answer: Mapping[str, Any] | None) -> None:
        self.left_out.append({**row, "reason": reason, "answer": answer})
        self.reasons[reason] += 1

    def ledger(self) -> Iterator[str]:
        """Lines: answers in = rows out + left out, by reason."""
        total = len(self.rows) + len(self.left_out)
        yield f"{len(self.rows):,} rows of {total:,} answers"
        for reason, number in self.reasons.most_common():
            yield f"  left out: {number:,} {reason}"


def sort(
    form: Form,
    rows: Sequence[Row],
    answers: Mapping[int, Mapping[str, Any]],
    abouts: Sequence[Mapping[str, Any]],
) -> Sorted:
    """Which answers become rows; those that were given up have none.

    Args:
      rows: the prompt of each answer.
      abouts: what is said of each.
    """
    found = Sorted()
    for number, (row, about) in enumerate(zip(rows, abouts, strict=True)):
        answer = answers.get(number)
        reason = GIVEN_UP if answer is None else form.fault(answer)
        if answer is None or reason is not None:
            found.leave_out({**row, **about}, reason or GIVEN_UP, answer)
            continue
        served = {"served_model": answer["model"]} if answer.get("model") else {}
        teacher = {**about["teacher"], **served}
        found.rows.append(
            form.row(row, answer, {**about, "teacher": teacher, "finish": answer["finish"]})
        )
    return found
