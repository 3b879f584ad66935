"""Distillation by text: a teacher's answers to a file of prompts, as rows to fine-tune on.

The teacher is a model here, or any server that speaks the OpenAI API. Each line of the input is an
object with a `prompt`, or with `messages`; each answer becomes a row that `tokenize chat` reads,
with the teacher and its sampling settings in it. A second start goes on where the first stopped.

    python -m jaxtrain.distill_text --model=HF_DIR --input=prompts.jsonl --output=rows.jsonl
    python -m jaxtrain.distill_text --workdir=DIR --plain --input=… --output=…     a base model
    python -m jaxtrain.distill_text --server=http://127.0.0.1:8000/v1 --model=NAME \\
        --api_key_env=TEACHER_KEY --num_samples=4 --input=prompts.jsonl --output=rows.jsonl

Then: python -m jaxtrain.tokenize chat --input=rows.jsonl …, and python -m jaxtrain.sft.

Answers that reached their length, are empty or were refused are no rows: they go to
OUTPUT.left_out with the reason.
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import collections
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jaxtrain import files, launch
from jaxtrain.progress import show_count
from jaxtrain.serving import arguments, teacher_rows
from jaxtrain.serving.chat_client import ChatServer, Failure, Question, ask_all
from jaxtrain.serving.drawing import Drawing, whole_answers
from jaxtrain.serving.model import TextModel
from jaxtrain.serving.prompt_file import AnswerFile, Row, read_rows
from jaxtrain.serving.teacher_rows import Form

_ANSWER = Iterator[tuple[int, Mapping[str, Any] | Failure]]


class Item(NamedTuple):
    """One answer: to which row, and which of several."""

    row: Row
    sample: int


class Teacher(Protocol):
    """Who answers."""

    @property
    def name(self) -> dict[str, Any]:
        """Who it is, for every row."""
        ...

    @property
    def recipe(self) -> dict[str, Any]:
        """All that decides its answers."""
        ...

    def sampling(self, sample: int) -> dict[str, Any]:
        """How one of several answers is drawn."""
        ...

    def answers(self, items: Sequence[Item], waiting: Sequence[int]) -> _ANSWER:
        """(number of the item, answer) of those waiting, as they come.

        Raises:
          ValueError: names the item that cannot be asked, before any is.
        """
        ...


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    _check(options)
    form = Form(options.plain, options.keep_cut)
    rows = read_rows(options.input)
    for number, row in enumerate(rows, 1):
        try:
            form.check(row)
        except ValueError as error:
            raise ValueError(f"{options.input}, prompt {number}: {error}") from error
    items = [Item(row, sample) for row in rows for sample in range(options.num_samples)]
    teacher = _local(options) if options.server is None else _remote(options, form)
    recipe = {"teacher": teacher.name, **teacher.recipe, "plain": form.plain}
    output = AnswerFile(options.output, [item.row for item in items], recipe)
    _collect(teacher, output, items, gives_up=options.give_up)
    _write(teacher, form, output, items, options.output)


def _collect(
    teacher: Teacher, output: AnswerFile, items: Sequence[Item], *, gives_up: bool
) -> None:
    """Asks what is not answered yet."""
    done = {n for n, answer in output.answers.items() if "refused" not in answer}
    if done:
        print(f"{len(done)} of {len(items)} answers were there before", file=sys.stderr)
    missing: collections.Counter[str] = collections.Counter()

    def kept() -> Iterator[tuple[int, Mapping[str, Any]]]:
        waiting = [number for number in range(len(items)) if number not in done]
        for number, answer in teacher.answers(items, waiting):
            if not isinstance(answer, Failure):
                yield number, answer
            elif answer.passes:
                missing[answer.reason] += 1
            else:
                yield number, {"refused": answer.reason}

    with show_count("answering", len(items), "answers") as show:
        output.collect(kept(), show)
    if missing and not gives_up:
        raise ValueError(
            f"{missing.total()} of {len(items)} questions have no answer yet "
            f"({missing.most_common(1)[0][0]}); start again to ask them once more, or with "
            "--give_up to go on without them"
        )


def _write(
    teacher: Teacher,
    form: Form,
    output: AnswerFile,
    items: Sequence[Item],
    path: pathlib.Path,
) -> None:
    abouts = [
        {"teacher": teacher.name, "sampling": teacher.sampling(each.sample), "sample": each.sample}
        for each in items
    ]
    found = teacher_rows.sort(form, [item.row for item in items], output.answers, abouts)
    if not found.rows:
        refused = next((a["refused"] for a in output.answers.values() if "refused" in a), None)
        raise ValueError(
            f"no answer can be trained on: {', '.join(found.ledger())}"
            + (f"; the first refusal: {refused}" if refused else "")
        )
    if found.left_out:
        with files.write_whole(path.with_name(path.name + ".left_out")) as file:
            for row in found.left_out:
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    output.write(found.rows)
    print(f"wrote {path}: " + "\n".join(found.ledger()))


class _Local:
    """A model that is loaded here."""

    def __init__(self, model: TextModel, drawing: Drawing, source: pathlib.Path) -> None:
        self._model, self._drawing, self._source = model, drawing, source
        self.name = {
            "model": model.name,
            "weights": model.weights_hash(),
            "precision": model.recipe,
        }
        self.recipe = drawing.recipe()

    def sampling(self, sample: int) -> dict[str, Any]:
        given = self.recipe["sampling"]
        return given | {"seed": (given["seed"] + sample) % 2**32}

    def answers(self, items: Sequence[Item], waiting: Sequence[int]) -> _ANSWER:
        asks = []
        for number, item in enumerate(items):
            if item.sample == 0:
                try:
                    asks += self._drawing.asks(self._model, item.row)
                except ValueError as error:
                    prompt = number // self._drawing.num_samples + 1
                    raise ValueError(f"{self._source}, prompt {prompt}: {error}") from error
        # As large as for all, so that a run that goes on draws what one that never stopped draws.
        engine = self._drawing.engine(self._model, asks)
        for number, answer in whole_answers(self._model, engine, {n: asks[n] for n in waiting}):
            text = answer.pop("text")
            yield number, {"message": {"role": "assistant", "content": text}, **answer}


def _local(options: argparse.Namespace) -> Teacher:
    sampling = arguments.sampling(options)
    model = arguments.load(options)
    drawing = Drawing(
        sampling,
        options.num_samples,
        options.max_new_tokens,
        tuple(options.stop),
        not options.plain,
        options.chat_template_kwargs,
        options.max_len or model.default_max_len,
        options.num_slots,
    )
    return _Local(model, drawing, options.input)


class _Remote:
    """A model of a server."""

    def __init__(
        self, server: ChatServer, form: Form, settings: Mapping[str, Any], concurrency: int
    ) -> None:
        self._server, self._form, self._concurrency = server, form, concurrency
        self.name = {"model": server.model, "server": server.url}
        self.recipe = {"sampling": dict(settings)}

    def sampling(self, sample: int) -> dict[str, Any]:
        given = self.recipe["sampling"]
        return given | ({"seed": given["seed"] + sample} if "seed" in given else {})

    def answers(self, items: Sequence[Item], waiting: Sequence[int]) -> _ANSWER:
        return ask_all(
            self._server,
            ((number, self._question(items[number])) for number in waiting),
            self._concurrency,
        )

    def _question(self, item: Item) -> Question:
        settings = self.sampling(item.sample)
        if "chat_template_kwargs" in item.row:
            settings["chat_template_kwargs"] = item.row["chat_template_kwargs"]
        return Question(self._form.conversation(item.row), item.row.get("tools"), settings)


def _remote(options: argparse.Namespace, form: Form) -> Teacher:
    sampling = arguments.sampling(options)
    # What every server knows; the others only where they are asked for.
    settings: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": options.max_new_tokens,
        "seed": sampling.seed,
    }
    further = {
        "top_k": (sampling.top_k, None),
        "min_p": (sampling.min_p, 0.0),
        "repetition_penalty": (sampling.repetition_penalty, 1.0),
        "stop": (options.stop, []),
        "chat_template_kwargs": (options.chat_template_kwargs, None),
    }
    settings |= {name: value for name, (value, off) in further.items() if value != off}
    settings |= options.request or {}
    settings = {name: value for name, value in settings.items() if value is not None}
    key = None
    if options.api_key_env is not None:
        key = os.environ.get(options.api_key_env)
        if not key:
            raise ValueError(
                f"--api_key_env={options.api_key_env}: there is no such environment variable, or "
                "it is empty; export it, or leave the flag out"
            )
    server = ChatServer(options.server, options.model, key, timeout_secs=options.timeout_secs)
    return _Remote(server, form, settings, options.concurrency)


def _check(options: argparse.Namespace) -> None:
    """Raises a ValueError for flags that contradict each other."""
    if options.server is None:
        if (options.workdir is None) == (options.model is None):
            raise ValueError("give a teacher: --workdir, or --model, or --server and --model")
        for flag in ("api_key_env", "request"):
            if getattr(options, flag) is not None:
                raise ValueError(f"--{flag} is of a --server")
        return
    if options.workdir is not None or options.model is None:
        raise ValueError("of a --server, --model says which of its models; --workdir is one here")
    if options.plain:
        raise ValueError("--plain is of a model here; a --server is asked in conversations")
    for flag in ("step", "max_len"):
        if getattr(options, flag) is not None:
            raise ValueError(f"--{flag} is of a model that is loaded here, not of a --server")


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    add = parser.add_argument
    add("--input", type=pathlib.Path, required=True, metavar="FILE.jsonl", help="prompts")
    add("--output", type=pathlib.Path, required=True, metavar="FILE.jsonl", help="rows")
    add("--workdir", metavar="DIR", type=launch.directory, help="of a run: the teacher")
    add("--model", metavar="HF_DIR|NAME", help="the teacher: a directory, or a --server's name")
    add("--server", metavar="URL", help="of the OpenAI API, up to /v1")
    add("--api_key_env", metavar="NAME", help="environment variable that holds the server's key")
    add(
        "--request", type=arguments.json_object, metavar="JSON",
        help='further fields of each request to a server; null takes one away, as {"seed": null}',
    )  # fmt: skip
    count = arguments.counts(parser)
    count("--concurrency", 8, "N", "questions to a server that are under way at a time")
    count("--timeout_secs", 600, "N", "for a server's answer, before it is asked again")
    add("--plain", action="store_true", help="prompts are texts to go on with: of a base model")
    add("--keep_cut", action="store_true", help="keep answers that reached --max_new_tokens")
    add("--give_up", action="store_true", help="go on without answers that a server fails to give")
    arguments.add_template_variables(parser)
    arguments.add_drawing(parser, max_new_tokens=512, temperature=1.0)
    arguments.add_loading(parser)
    return parser


if __name__ == "__main__":
    launch.run(main)
