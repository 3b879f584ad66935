"""Text from a model: a run's checkpoint by its workdir, or a Hugging Face directory.

One prompt goes to the terminal as it is drawn; a file of prompts (JSON Lines with `prompt`, or with
`messages`) goes to a file of answers, and a second start goes on where the first stopped. With
--chat the prompt is a user's message, put into the model's own chat template.

    python -m jaxtrain.generate --workdir=DIR --prompt="def "
    python -m jaxtrain.generate --model=HF_DIR --chat --prompt="Who are you?" --temperature=0
    python -m jaxtrain.generate --workdir=DIR --input=prompts.jsonl --output=answers.jsonl
    python -m jaxtrain.generate --workdir=DIR --draft=mtp|SMALLER --prompt="def "

Sampling works in this order: repetition penalty, temperature, top-k, top-p, min-p.
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import io
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from jaxtrain import launch
from jaxtrain.decode.draft import Draft
from jaxtrain.decode.engine import Engine
from jaxtrain.progress import show_count
from jaxtrain.serving import arguments
from jaxtrain.serving.answers import Ask, answer_all
from jaxtrain.serving.drawing import Drawing, whole_answers
from jaxtrain.serving.model import TextModel
from jaxtrain.serving.prompt_file import AnswerFile, Row, read_rows


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    if (options.input is None) != (options.output is None):
        raise ValueError("--input and --output belong together; give both or neither")
    if options.input is not None and options.prompt is not None:
        raise ValueError("--prompt and --input exclude each other; put the prompt into the file")
    sampling = arguments.sampling(options)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not have every character
        sys.stdout.reconfigure(errors="backslashreplace")
    rows = None if options.input is None else read_rows(options.input)
    model = arguments.load(options)
    draft = arguments.load_draft(options, model)
    drawing = Drawing(
        sampling,
        options.num_samples,
        options.max_new_tokens,
        tuple(options.stop),
        options.chat,
        options.chat_template_kwargs,
        options.max_len or model.default_max_len,
        options.num_slots,
    )
    if rows is not None:
        _answer_file(model, options, drawing, rows, draft)
    else:
        _answer_prompt(model, options, drawing, draft)


def _answer_prompt(
    model: TextModel, options: argparse.Namespace, drawing: Drawing, draft: Draft | None
) -> None:
    text = options.prompt or ""
    row = {"messages": [{"role": "user", "content": text}]} if options.chat else {"prompt": text}
    asks = drawing.asks(model, row)
    engine = drawing.engine(model, asks, draft)
    texts = ["" for _ in asks]
    finishes: list[Any] = [None for _ in asks]
    is_streamed = not options.json and len(asks) == 1
    if is_streamed and not options.chat:
        print(text, end="", flush=True)
    for number, piece in answer_all(model, engine, asks):
        texts[number] += piece.text
        finishes[number] = piece.finish
        if is_streamed:
            print(piece.text, end="", flush=True)
    if options.json:
        answers = [{"text": t, "finish": f} for t, f in zip(texts, finishes, strict=True)]
        print(json.dumps({"model": model.name, **row, "answers": answers}, ensure_ascii=False))
    elif is_streamed:
        print()
    else:
        print("\n---\n".join(texts))
    arguments.say_drafted(engine.num_drafted)


def _answer_file(
    model: TextModel,
    options: argparse.Namespace,
    drawing: Drawing,
    rows: list[Row],
    draft: Draft | None,
) -> None:
    recipe = {"model": model.name, "weights": model.weights_hash(), **drawing.recipe()}
    output = AnswerFile(options.output, rows, recipe)
    every: list[list[Ask]] = []
    for number, row in enumerate(rows):  # before anything is drawn: a bad row stops no run
        try:
            every.append(drawing.asks(model, row))
        except ValueError as error:
            raise ValueError(f"{options.input}, prompt {number + 1}: {error}") from error
    if output.num_done:
        print(f"{output.num_done} of {len(rows)} prompts were answered before", file=sys.stderr)
    # As large as for all rows, so that a run that goes on draws what one that never stopped draws.
    engine = drawing.engine(model, [ask for each in every for ask in each], draft)
    waiting = {number: every[number] for number in output.waiting}
    with show_count("answering", len(rows), "prompts") as show:
        output.fill(_whole_answers(model, engine, waiting), show)
    print(f"wrote {options.output}: {len(rows)} prompts")
    arguments.say_drafted(engine.num_drafted)


def _whole_answers(
    model: TextModel, engine: Engine, asks: dict[int, list[Ask]]
) -> Iterator[tuple[int, Any]]:
    """(row, its answers) as each row gets the last of them."""
    flat = {(row, number): ask for row, each in asks.items() for number, ask in enumerate(each)}
    found: dict[int, dict[int, Any]] = {row: {} for row in asks}
    for (row, number), answer in whole_answers(model, engine, flat):
        found[row][number] = answer
        if len(found[row]) == len(asks[row]):
            yield row, [answer for _, answer in sorted(found.pop(row).items())]


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    arguments.add_model(parser)
    arguments.add_draft(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="text to continue; default: a new text")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message")
    arguments.add_template_variables(parser)
    parser.add_argument("--input", type=pathlib.Path, metavar="FILE.jsonl", help="many prompts")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.jsonl", help="their answers")
    arguments.add_drawing(parser, max_new_tokens=64, temperature=0.8)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    launch.run(main)
