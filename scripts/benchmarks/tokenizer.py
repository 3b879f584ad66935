"""MB of text per second of CPU time that each kind of tokenizer encodes, beside the reference.

    python scripts/benchmarks/tokenizer.py --data DIR [--vocab_size 16384] [--mb 4] [--rounds 5]

DIR holds the public data sets of the project (books-en, docs-zh, math-en, udhr). Tokenizers of
every kind are trained on half of the texts and encode the other half, by our `encode_batch` and by
the library that defines the file (`tokenizers`' encode_batch_fast; for SentencePiece the same
model as a tokenizer.json). Both take turns in one process; medians of CPU time, all threads
together, so that neither the number of cores nor other work on the machine counts. Ids are compared
for every text. `whole` is `tokenize encode`: reading, encoding, verifying a sample, writing.
"""

import argparse
import gzip
import json
import pathlib
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

from jaxtrain import token_store
from jaxtrain.corpus.collection import Collection
from jaxtrain.corpus.documents import Document, write_documents
from jaxtrain.tokenizer.encode import DOCUMENT_FORM
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.training import KINDS, Training


def read_texts(data: pathlib.Path, megabytes: float) -> dict[str, list[str]]:
    """Source → texts, of each about as much."""
    texts: dict[str, list[str]] = {
        "code": [
            path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        ],
        "en": list(_rows(data, "books-en/george-eliot_middlemarch.jsonl.gz")),
        "zh": list(_rows(data, "docs-zh/d2l-zh.jsonl.gz")),
        "math": _unpacked(data / "math-en/stacks-algebra.tex.gz").split("\n\n"),
        "40 languages": list(_rows(data, "udhr/udhr.jsonl.gz")),
    }
    return {source: list(_until(each, megabytes * 1e6)) for source, each in texts.items()}


def _rows(data: pathlib.Path, name: str) -> Iterator[str]:
    for line in _unpacked(data / name).split("\n")[:-1]:
        yield json.loads(line)["text"]


def _unpacked(path: pathlib.Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def _until(texts: Sequence[str], num_bytes: float) -> Iterator[str]:
    total = 0
    for text in texts:
        if total >= num_bytes:
            return
        total += len(text.encode())
        yield text


def cpu_secs(work: Callable[[], object]) -> float:
    """CPU seconds of all threads."""
    started = time.process_time()
    work()
    return time.process_time() - started


def compare(tokenizer: Tokenizer, texts: dict[str, list[str]], rounds: int) -> None:
    """Prints a row for each source and one for all."""
    reference = Tokenizer(tokenizer.transformers_files["tokenizer.json"])
    totals = [0.0, 0.0]
    for source, each in texts.items():
        ours = tokenizer.encode_batch(each)
        theirs = reference.encode_by_reference(each)
        if any(a.tolist() != b.tolist() for a, b in zip(ours, theirs, strict=True)):
            raise SystemExit(f"{tokenizer.kind}: other ids for {source}")
        times: list[list[float]] = [[], []]
        for _ in range(rounds):
            times[0].append(cpu_secs(lambda each=each: tokenizer.encode_batch(each)))
            times[1].append(cpu_secs(lambda each=each: reference.encode_by_reference(each)))
        medians = [statistics.median(each) for each in times]
        totals = [total + median for total, median in zip(totals, medians, strict=True)]
        _row(source, sum(len(text.encode()) for text in each), medians)
    _row("all", sum(len(t.encode()) for each in texts.values() for t in each), totals)


def _row(source: str, num_bytes: int, secs: Sequence[float]) -> None:
    rates = [num_bytes / 1e6 / each for each in secs]
    print(f"  {source:14} {rates[0]:8.1f} {rates[1]:8.1f} MB/s  {rates[0] / rates[1]:5.2f}x")


def whole(tokenizer: Tokenizer, texts: dict[str, list[str]]) -> None:
    """Prints the rate of documents into a store."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "documents.jsonl")
        documents = [
            Document(f"{source}-{number}", text, source, {})
            for source, each in texts.items()
            for number, text in enumerate(each)
        ]
        num_bytes = write_documents(path, documents).bytes
        source, out = Collection([str(path)]), str(pathlib.Path(folder, "store"))
        secs = cpu_secs(lambda: token_store.encode(source, tokenizer, DOCUMENT_FORM, out))
        print(f"  whole          {num_bytes / 1e6 / secs:8.1f} MB/s")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, type=pathlib.Path, metavar="DIR")
    parser.add_argument("--vocab_size", type=int, default=16384, metavar="N")
    parser.add_argument("--mb", type=float, default=4, metavar="N", help="of each source")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    options = parser.parse_args()
    texts = read_texts(options.data, options.mb)
    known = [text for each in texts.values() for text in each[::2]]
    new = {source: each[1::2] for source, each in texts.items()}
    print("MB per second of CPU time: ours, the reference, ratio")
    for kind in KINDS:
        started = time.process_time()
        tokenizer = Training(kind, options.vocab_size).train(known)
        trained = time.process_time() - started
        print(f"{kind} ({options.vocab_size:,} ids, trained in {trained:.0f} CPU s)")
        compare(tokenizer, new, options.rounds)
        whole(tokenizer, new)


if __name__ == "__main__":
    main()
