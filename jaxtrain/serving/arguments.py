"""Flags that `generate` and `serve` share: which model, how long, on how many devices."""

import argparse
import sys
from collections.abc import Callable

from jaxtrain import launch
from jaxtrain.hub.download import find_model
from jaxtrain.hub.model import HubModel
from jaxtrain.serving import model as model_lib
from jaxtrain.serving.model import TextModel


def add_model(parser: argparse.ArgumentParser) -> None:
    """--workdir or --model, --step, --max_len, --num_tensor."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--workdir", metavar="DIR", type=launch.directory, help="of a run")
    which.add_argument("--model", metavar="HF_DIR", help="Hugging Face directory, or owner/name")
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
        f"{model.name}: {model.recipe}, context {limit} tokens, {options.num_tensor} device(s)",
        file=sys.stderr,
        flush=True,
    )
    return model
