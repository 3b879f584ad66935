"""Text in, a corpus out: documents are read, deduplicated and split, and all of it is counted.

Leaves train.jsonl, heldout.jsonl and card.json in the workdir. The card says what the corpus was
made from, where every document went, and what zlib and lzma reach on the held-out bytes. A second
start finds the corpus done when settings and input are the same, and refuses to touch it otherwise.

    python -m jaxtrain.prepare --config=configs/corpus/stdlib.py --workdir=runs/corpus
"""

import argparse
import json

from jaxtrain import launch, provenance
from jaxtrain.corpus import build
from jaxtrain.corpus.ledger import Ledger
from jaxtrain.corpus.stdlib import read_stdlib


def main() -> None:
    """Runs the command line."""
    config, options = launch.parse(build.CorpusConfig, _arguments())
    print("reading the standard library's sources …", flush=True)
    ledger = Ledger()
    documents = list(read_stdlib(config.stdlib, ledger))
    card = build.read_card(options.workdir)
    if card:
        provenance.check_same(options.workdir, card["made_from"], build.recipe(documents, config))
        print(f"{options.workdir} already holds this corpus; nothing to do")
    else:
        card = build.build(documents, ledger, config, options.workdir)
        print(ledger.table())
    rates = ", ".join(f"{name} {rate:.3f}" for name, rate in card["heldout_bits_per_byte"].items())
    print(f"compressors on the held-out text (bits per byte): {rates}")
    if options.json:
        print(json.dumps(card))


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
    return parser


if __name__ == "__main__":
    launch.run(main)
