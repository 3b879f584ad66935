"""Flags that several commands share: which model, how long, on how many devices, how to draw."""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from jaxtrain import launch, workdir
from jaxtrain.decode.draft import MAX_NUM_TOKENS, Draft
from jaxtrain.decode.sampling import Sampling
from jaxtrain.hub.download import find_model
from jaxtrain.hub.model import HubModel
from jaxtrain.serving import model as model_lib
from jaxtrain.serving.model import TextModel

#: The --draft that is no path; a directory of that name is ./mtp.
OWN_MODULES = "mtp"
_NUM_DRAFTED = 4  # by a model; for few requests of agreeing models more gives little


def add_model(parser: argparse.ArgumentParser) -> None:
    """--workdir or --model, --step, --max_len, --num_tensor."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--workdir", metavar="DIR", type=launch.directory, help="of a run")
    which.add_argument("--model", metavar="HF_DIR", help="Hugging Face directory, or owner/name")
    add_loading(parser)


def add_loading(parser: argparse.ArgumentParser) -> None:
    """--step, --max_len, --num_tensor."""
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint; default: the latest")
    parser.add_argument(
        "--max_len",
        type=positive,
        metavar="N",
        help="tokens of prompt and answer together; default: what the model was made for, up to "
        f"{model_lib.DEFAULT_MAX_LEN}",
    )
    parser.add_argument(
        "--num_tensor", type=positive, default=1, metavar="N", help="devices to split it over (1)"
    )


def add_drawing(
    parser: argparse.ArgumentParser, *, max_new_tokens: int, temperature: float
) -> None:
    """--max_new_tokens, --num_samples, --num_slots, --stop and what `sampling` reads."""
    add = counts(parser)
    add("--max_new_tokens", max_new_tokens, "N", "length of an answer at most, in tokens")
    add("--num_samples", 1, "N", "answers for each prompt, of seeds SEED, SEED + 1, …")
    add("--num_slots", 16, "N", "answers that are drawn at the same time")
    default = Sampling(temperature=temperature)
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


def add_draft(parser: argparse.ArgumentParser) -> None:
    """--draft, --num_drafted."""
    parser.add_argument(
        "--draft", metavar=f"{OWN_MODULES}|WORKDIR|HF_DIR",
        help="what proposes tokens (speculative decoding): the model's own modules of multi-token "
        "prediction, or a smaller model of the same tokenizer; faster where it is often right, "
        "and the same answers",
    )  # fmt: skip
    parser.add_argument(
        "--num_drafted", type=_num_drafted, metavar="N",
        help=f"tokens that it proposes in one turn, at most {MAX_NUM_TOKENS}; default: the number "
        f"of modules, or {_NUM_DRAFTED} of a model",
    )  # fmt: skip


def add_template_variables(parser: argparse.ArgumentParser) -> None:
    """--chat_template_kwargs."""
    parser.add_argument(
        "--chat_template_kwargs", type=json_object, metavar="JSON",
        help='variables of the chat template, as {"enable_thinking": false}',
    )  # fmt: skip


def sampling(options: argparse.Namespace) -> Sampling:
    """What `add_drawing`'s flags say.

    Raises:
      ValueError: for a value that is out of its range.
    """
    return Sampling(
        options.temperature,
        options.top_k,
        options.top_p,
        options.min_p,
        options.repetition_penalty,
        options.seed,
    )


def json_object(text: str) -> dict[str, Any]:
    """The type of a flag that is a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text} must be a JSON object")
    return value


def counts(parser: argparse.ArgumentParser) -> Callable[[str, int, str, str], None]:
    """A function that adds a flag of a number of at least 1."""

    def add(flag: str, default: int, metavar: str, doc: str) -> None:
        parser.add_argument(
            flag, type=positive, default=default, metavar=metavar, help=f"{doc} (%(default)s)"
        )

    return add


def positive(text: str) -> int:
    """The type of such a flag."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number from 1 on")
    return value


def _num_drafted(text: str) -> int:
    value = positive(text)
    if value > MAX_NUM_TOKENS:
        raise argparse.ArgumentTypeError(
            f"{text} must be from 1 to {MAX_NUM_TOKENS}: each is a pass of the draft in the program"
        )
    return value


def load_draft(options: argparse.Namespace, model: TextModel) -> Draft | None:
    """The draft that the flags name, if any.

    Raises:
      ValueError: where it is none for this model.
    """
    if options.draft is None:
        if options.num_drafted is not None:
            raise ValueError(f"--num_drafted={options.num_drafted} is of a --draft; name one")
        return None
    if options.draft == OWN_MODULES:
        return model.own_draft(options.num_drafted)
    path = pathlib.Path(options.draft)
    if (path / workdir.CHECKPOINTS).is_dir():
        draft = model_lib.from_workdir(path, None, options.num_tensor)
    else:
        draft = model_lib.from_hub(
            HubModel(find_model(options.draft, flag="--draft")), options.num_tensor
        )
    return draft.draft_of(model, options.num_drafted or _NUM_DRAFTED)


def say_drafted(num_drafted: tuple[int, int]) -> None:
    """Says on stderr how often a draft was right, if there was one: (accepted, proposed)."""
    accepted, proposed = num_drafted
    if proposed:
        print(
            f"draft: {accepted} of {proposed} proposed tokens accepted ({accepted / proposed:.0%})",
            file=sys.stderr,
            flush=True,
        )


def load(options: argparse.Namespace) -> TextModel:
    """The model that the flags name; says on stderr what will run.

    Raises:
      ValueError: where there is none, or flags contradict each other.
    """
    if options.model is not None and options.step is not None:
        raise ValueError("--step is of a --workdir; a --model has one state only")
    if options.model is not None:
        hub = HubModel(find_model(options.model))
        model = model_lib.from_hub(hub, options.num_tensor)
    else:
        model = model_lib.from_workdir(options.workdir, options.step, options.num_tensor)
    limit = options.max_len or model.default_max_len
    print(
        f"{model.name}: {model.computes_in}, context {limit} tokens, "
        f"{options.num_tensor} device(s)",
        file=sys.stderr,
        flush=True,
    )
    return model
