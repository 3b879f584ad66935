"""Raw text in, a clean corpus with its data card out.

Documents are read from files of many formats, go through the steps that the config names, are split
into train/ and heldout/ (Parquet), and all of it is counted in card.json. Stopped at any moment
(Ctrl-C, SIGTERM, a lost machine), a second start with the same workdir goes on where it was, and
the result is the same byte for byte. It finds the corpus done when settings and input are the same,
and refuses to touch it otherwise.

    python -m jaxtrain.prepare --config=configs/corpus/code.py --workdir=runs/corpus
    python -m jaxtrain.prepare --config=configs/corpus/web.py --workdir=DIR \\
        --config.inputs=web=/data/web/*.jsonl.gz,books=/data/books/*.txt

`--diff` compares two corpora: which settings differ, what each rule removed, which documents moved.

    python -m jaxtrain.prepare --diff DIR_A DIR_B
"""

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from jaxtrain import launch, provenance
from jaxtrain.config import differences
from jaxtrain.corpus import diff, run
from jaxtrain.corpus.card_markdown import CARD_MD
from jaxtrain.corpus.config import CorpusConfig


def main() -> None:
    """Runs the command line."""
    if any(argument.partition("=")[0] == "--diff" for argument in sys.argv[1:]):
        _diff(_diff_arguments().parse_args())
        return
    config, options = launch.parse(CorpusConfig, _arguments())
    with _stopping():
        card, is_new = run.prepare(config, options.workdir, provenance.check_same)
    if is_new:
        print(_table(card))
        if passed_by := card["passed_by"]:
            counts = [f"{each['amount']['documents']:,} {why}" for why, each in passed_by.items()]
            print(f"records that gave no document: {', '.join(counts)}")
        print(f"{options.workdir / CARD_MD} says what each rule removed, with examples")
    else:
        print(f"{options.workdir} already holds this corpus; nothing to do")
    if rates := card["heldout_bits_per_byte"]:
        named = ", ".join(f"{name} {rate:.3f}" for name, rate in rates.items())
        print(f"compressors on the held-out text (bits per byte): {named}")
    if options.json:
        print(json.dumps(card))


def _diff(options: argparse.Namespace) -> None:
    """Prints how two corpora differ; as JSON, every document that moved on a line before."""

    def show(move: diff.Move) -> None:
        print(json.dumps(move._asdict(), ensure_ascii=False))

    a, b = options.diff
    difference = diff.compare(a, b, differences, show if options.json else lambda move: None)
    print(json.dumps(difference, ensure_ascii=False) if options.json else diff.report(difference))


def _table(card: Mapping[str, Any]) -> str:
    """What came in, what each step left and what went out."""
    rows = [("in", card["summary"]["read"])]
    rows += [(f"left by {step['step']}", step["out"]) for step in card["steps"]]
    rows += [(f"out: {name}", amount) for name, amount in card["summary"]["written"].items()]
    return "\n".join(
        f"{name:<36}{amount['documents']:>12,} documents{amount['bytes']:>17,} bytes"
        for name, amount in rows
    )


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block, and the process, at once; what is done is kept."""

    def stop(number: int, _: FrameType | None) -> None:
        print("stopped; start again with the same --workdir to go on", file=sys.stderr, flush=True)
        sys.exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    parser.add_argument(
        "--workdir",
        required=True,
        metavar="DIR",
        type=launch.directory,
        help="where the corpus is written",
    )
    parser.add_argument("--json", action="store_true", help="print the card as the last line")
    _add_diff(parser)  # for the help: with it none of the others is taken
    return parser


def _diff_arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    _add_diff(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a line for each document that moved, and what differs as the last one",
    )
    return parser


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("DIR_A", "DIR_B"),
        type=launch.directory,
        help="compare two corpora instead",
    )


if __name__ == "__main__":
    launch.run(main)
