"""Documents a second of one process that `tokenize chat` or `tokenize answers` makes, CPU time.

Rows are read, rendered and encoded, and nothing is written; the best of three turns.

    python scripts/benchmarks/rendering.py answers --input pairs.jsonl.gz --tokenizer DIR \\
        [--chat_template chatml] [--max_len N --too_long left]
"""

import argparse
import time

from jaxtrain import answer_store, chat_store, row_store

TURNS = 3
STORES = {"chat": chat_store, "answers": answer_store}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    for name, store in STORES.items():
        command = commands.add_parser(name)
        command.add_argument("--input", required=True, nargs="+", metavar="PATH")
        store.add_options(command)
    flags = parser.parse_args()
    source = STORES[flags.command].from_options(flags)
    turns = [measure(source, flags.max_bad_frac) for _ in range(TURNS)]
    secs, documents, num_bytes = min(turns)
    print(
        f"{documents:,} documents, {num_bytes / 1e6:.1f} MB of text in {secs:.2f} s: "
        f"{documents / secs:,.0f} a second, {num_bytes / secs / 1e6:.2f} MB/s"
    )


def measure(source: row_store.Source, max_bad_frac: float) -> tuple[float, int, int]:
    """Seconds of CPU time, documents, and bytes of text as rendered."""
    start = time.process_time()
    sizes = [
        document.example.num_text_bytes
        for document in source.documents(source.new_ledger(max_bad_frac))
    ]
    return time.process_time() - start, len(sizes), sum(sizes)


if __name__ == "__main__":
    main()
