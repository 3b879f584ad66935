"""Text from a model: a run's checkpoint by its workdir, or a Hugging Face directory.

One prompt goes to the terminal as it is drawn; a file of prompts (JSON Lines with `prompt`, or with
`messages`) goes to a file of answers, and a second start goes on where the first stopped. With
--chat the prompt is a user's message, put into the model's own chat template.

    python -m jaxtrain.generate --workdir=DIR --prompt="def "
    python -m jaxtrain.generate --model=HF_DIR --chat --prompt="Who are you?" --temperature=0
    python -m jaxtrain.generate --workdir=DIR --input=prompts.jsonl --output=answers.jsonl

Sampling works in this order: repetition penalty, temperature, top-k, top-p, min-p.
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import dataclasses
import io
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from jaxtrain import launch
from jaxtrain.decode.engine import Engine
from jaxtrain.decode.sampling import Sampling
from jaxtrain.progress import show_count
from jaxtrain.serving import arguments
from jaxtrain.serving.answers import Ask, answer_all, chat_prompt, text_prompt
from jaxtrain.serving.model import TextModel
from jaxtrain.serving.prompt_file import AnswerFile, Row, read_rows

_SLOTS = 16


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    if (options.input is None) != (options.output is None):
        raise ValueError("--input and --output belong together; give both or neither")
    if options.input is not None and options.prompt is not None:
        raise ValueError("--prompt and --input exclude each other; put the prompt into the file")
    sampling = Sampling(
        options.temperature,
        options.top_k,
        options.top_p,
        options.min_p,
        options.repetition_penalty,
        options.seed,
    )
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not have every character
        sys.stdout.reconfigure(errors="backslashreplace")
    rows = None if options.input is None else read_rows(options.input)
    model = arguments.load(options)
    if rows is not None:
        _answer_file(model, options, sampling, rows)
    else:
        _answer_prompt(model, options, sampling)


def _answer_prompt(model: TextModel, options: argparse.Namespace, sampling: Sampling) -> None:
    text = options.prompt or ""
    row = {"messages": [{"role": "user", "content": text}]} if options.chat else {"prompt": text}
    asks = _asks(model, row, options, sampling)
    engine = _engine(model, options, asks)
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


def _answer_file(
    model: TextModel, options: argparse.Namespace, sampling: Sampling, rows: list[Row]
) -> None:
    recipe = {
        "model": model.name,
        "sampling": dataclasses.asdict(sampling)
        | {"max_new_tokens": options.max_new_tokens, "stop": options.stop},
        "num_samples": options.num_samples,
        "chat": options.chat,
        "chat_template_kwargs": options.chat_template_kwargs,
        "max_len": options.max_len or model.default_max_len,
        "num_slots": options.num_slots,
    }
    output = AnswerFile(options.output, rows, recipe)
    every: list[list[Ask]] = []
    for number, row in enumerate(rows):  # before anything is drawn: a bad row stops no run
        try:
            every.append(_asks(model, row, options, sampling))
        except ValueError as error:
            raise ValueError(f"{options.input}, prompt {number + 1}: {error}") from error
    if output.num_done:
        print(f"{output.num_done} of {len(rows)} prompts were answered before", file=sys.stderr)
    # As large as for all rows, so that a run that goes on draws what one that never stopped draws.
    engine = _engine(model, options, [ask for each in every for ask in each])
    waiting = {number: every[number] for number in output.waiting}
    with show_count("answering", len(rows), "prompts") as show:
        output.fill(_whole_answers(model, engine, waiting), show)
    print(f"wrote {options.output}: {len(rows)} prompts")


def _whole_answers(
    model: TextModel, engine: Engine, asks: dict[int, list[Ask]]
) -> Iterator[tuple[int, Any]]:
    """(row, its answers) as each row gets the last of them."""
    flat = [(row, ask) for row, each in asks.items() for ask in each]
    parts: dict[int, list] = {number: [] for number in range(len(flat))}
    found: dict[int, dict[int, Any]] = {row: {} for row in asks}
    for number, piece in answer_all(model, engine, (ask for _, ask in flat)):
        parts[number].append(piece)
        if piece.finish is None:
            continue
        row, pieces = flat[number][0], parts.pop(number)
        found[row][number] = {
            "text": "".join(each.text for each in pieces),
            "finish": piece.finish,
            "num_tokens": sum(len(each.ids) for each in pieces),
            "logprob_sum": sum(sum(each.logprobs) for each in pieces),
        }
        if len(found[row]) == len(asks[row]):
            yield row, [answer for _, answer in sorted(found.pop(row).items())]


def _asks(model: TextModel, row: Row, options: argparse.Namespace, sampling: Sampling) -> list[Ask]:
    variables = row.get("chat_template_kwargs", options.chat_template_kwargs)
    if "messages" in row:
        ids = chat_prompt(model, row["messages"], row.get("tools"), variables)
    elif options.chat:
        message = {"role": "user", "content": row["prompt"]}
        ids = chat_prompt(model, [message], None, variables)
    else:
        ids = text_prompt(model, row["prompt"])
    limit = options.max_len or model.default_max_len
    if not 1 <= len(ids) < limit:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, but must have from 1 to {limit - 1}: prompt and "
            f"answer share --max_len={limit}"
        )
    return [
        Ask(
            ids,
            options.max_new_tokens,
            dataclasses.replace(sampling, seed=(sampling.seed + number) % 2**32),
            tuple(options.stop),
            goes_on=not (options.chat or "messages" in row),
        )
        for number in range(options.num_samples)
    ]


def _engine(model: TextModel, options: argparse.Namespace, asks: list[Ask]) -> Engine:
    """As large as these need: a cache that nobody fills costs time."""
    longest = max((len(ask.ids) for ask in asks), default=1) + options.max_new_tokens
    limit = options.max_len or model.default_max_len
    slots = max(1, min(len(asks), options.num_slots))
    return model.engine(max_len=max(2, min(longest, limit)), num_slots=slots)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} must be a JSON object")
    return value


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    arguments.add_model(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="text to continue; default: a new text")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message")
    parser.add_argument(
        "--chat_template_kwargs", type=_json_object, metavar="JSON",
        help='variables of the chat template, as {"enable_thinking": false}',
    )  # fmt: skip
    parser.add_argument("--input", type=pathlib.Path, metavar="FILE.jsonl", help="many prompts")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.jsonl", help="their answers")
    add = arguments.counts(parser)
    add("--max_new_tokens", 64, "N", "length of an answer at most, in tokens")
    add("--num_samples", 1, "N", "answers for each prompt, of seeds SEED, SEED + 1, …")
    add("--num_slots", _SLOTS, "N", "answers that are drawn at the same time")
    default = Sampling(temperature=0.8)
    parser.add_argument(
        "--temperature", type=float, default=default.temperature, metavar="X",
        help="divides the logits; 0: the likeliest (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--top_k", type=int, metavar="N", help="only the N likeliest (all)")
    parser.add_argument(
        "--top_p", type=float, default=default.top_p, metavar="X",
        help="only the fewest likeliest whose probabilities reach X (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--min_p", type=float, default=default.min_p, metavar="X",
        help="only those at least X times as likely as the likeliest (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--repetition_penalty", type=float, default=default.repetition_penalty, metavar="X",
        help="of tokens in the prompt or the answer, above 1 (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT",
        help="ends the answer and is no part of it; repeatable",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=default.seed, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    launch.run(main)
