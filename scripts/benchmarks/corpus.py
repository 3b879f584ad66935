"""Speed of `prepare` on synthetic pages, per core, and the most memory of all its processes.

Pages are sentences of words drawn from Python's own documentation with their frequencies there; a
tenth are copies of earlier pages, another tenth copies with a word changed. The same size gives the
same pages with the same Python. Speeds are per second of CPU time of all processes together, so
that other work on the machine does not count.

    python scripts/benchmarks/corpus.py --megabytes=200
    python scripts/benchmarks/corpus.py --megabytes=1000 --num_workers=2 \\
        --config=configs/corpus/web.py --config.rejected=none
"""

import argparse
import gzip
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pydoc_data.topics import topics

import numpy as np

_FILES = 16
_WORDS_PER_DOCUMENT = (60, 700)
_COPY_FRAC, _NEAR_COPY_FRAC = 0.1, 0.1


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200, help="of text")
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--config", default="configs/corpus/web.py")
    parser.add_argument("--dir", type=pathlib.Path, help="where files are written; kept")
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.dir or pathlib.Path(temporary)
        written = write_pages(folder / "input", options.megabytes * 1_000_000)
        result = measure(
            [
                *(sys.executable, "-m", "jaxtrain.prepare", f"--config={options.config}"),
                f"--config.inputs=web={folder}/input/*.jsonl.gz",
                f"--config.num_workers={options.num_workers}",
                f"--workdir={folder / 'corpus'}",
                *overrides,
            ]
        )
        steps = json.loads((folder / "corpus" / "card.json").read_text())["steps"]
    print(f"{written['documents']:,} documents, {written['bytes'] / 1e6:,.0f} MB of text")
    for step in steps:
        print(f"  {step['step']:<28}{step['out']['documents']:>12,} documents left")
    cpu = result["cpu_secs"]
    print(
        f"{cpu:,.0f} s of CPU ({result['wall_secs']:,.0f} s of time): per core "
        f"{written['bytes'] / 1e6 / cpu:.2f} MB/s, {written['documents'] / cpu:,.0f} documents/s; "
        f"peak memory of all processes {result['peak_bytes'] / 1e9:.2f} GB"
    )


def write_pages(folder: pathlib.Path, num_bytes: int) -> dict[str, int]:
    """Writes the input where it is not there yet; returns what it holds."""
    summary = folder / "summary.json"
    if summary.exists():
        return json.loads(summary.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    pages = _pages(np.random.default_rng(0))
    documents = size = 0
    for index in range(_FILES):
        with gzip.open(folder / f"{index:02d}.jsonl.gz", "wb", compresslevel=1) as file:
            while size < num_bytes * (index + 1) // _FILES:
                text = next(pages)
                file.write(json.dumps({"id": str(documents), "text": text}).encode() + b"\n")
                documents += 1
                size += len(text)
    summary.write_text(json.dumps({"documents": documents, "bytes": size}))
    return json.loads(summary.read_text())


def _pages(rng: np.random.Generator) -> Iterator[str]:
    vocabulary, weights = _vocabulary()
    earlier: list[str] = []
    while True:
        kind = rng.random()
        if earlier and kind < _COPY_FRAC:
            yield earlier[rng.integers(len(earlier))]
            continue
        if earlier and kind < _COPY_FRAC + _NEAR_COPY_FRAC:
            words = earlier[rng.integers(len(earlier))].split(" ")
            words[rng.integers(len(words))] = vocabulary[rng.integers(len(vocabulary))]
            yield " ".join(words)
            continue
        page = _page(rng, vocabulary, weights)
        if len(earlier) < 10_000:
            earlier.append(page)
        yield page


def _vocabulary() -> tuple[list[str], np.ndarray]:
    """Words of running text and their frequencies."""
    prose = " ".join(topics.values()).lower()
    counts = Counter(re.findall(r"(?<= )[a-z]{1,15}(?=[ ,.])", prose))
    words = sorted(counts)
    frequencies = np.array([counts[word] for word in words], float)
    return words, frequencies / frequencies.sum()


def _page(rng: np.random.Generator, vocabulary: list[str], weights: np.ndarray) -> str:
    words = rng.choice(len(vocabulary), rng.integers(*_WORDS_PER_DOCUMENT), p=weights)
    paragraphs: list[str] = []
    sentences: list[str] = []
    at = 0
    while at < len(words):
        length = int(rng.integers(6, 20))
        sentence = " ".join(vocabulary[word] for word in words[at : at + length])
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
        at += length
        if len(sentences) == 6:
            paragraphs.append(" ".join(sentences))
            sentences = []
    return "\n".join([*paragraphs, " ".join(sentences)]).strip()


def measure(command: list[str]) -> dict[str, float]:
    """Runs a command; its CPU seconds, its duration, and the most memory of it and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    process = subprocess.Popen(command)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.2):
            peak = max(peak, _tree_bytes(process.pid))

    thread = threading.Thread(target=watch)
    thread.start()
    code = process.wait()
    done.set()
    thread.join()
    if code:
        sys.exit(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_secs": cpu, "wall_secs": time.monotonic() - started, "peak_bytes": peak}


def _tree_bytes(root: int) -> int:
    """Resident bytes of a process and all below it, pages that they share counted once."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    total = 0
    for pid in parents:
        above = pid
        while above not in (root, 0):
            above = parents.get(above, 0)
        if above == root:
            total += _proportional_bytes(pid)
    return total


def _proportional_bytes(pid: int) -> int:
    try:
        lines = pathlib.Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
