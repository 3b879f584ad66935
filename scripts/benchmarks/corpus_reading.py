"""MB/s per core of reading documents, by format: of the text in JSON Lines form, CPU time.

The same documents are written in every format (made up by a fixed seed, or the JSON Lines of
--data), then read through `jaxtrain.corpus.inputs`; the best of three turns.

    python scripts/benchmarks/corpus_reading.py [--megabytes=50] [--data=FILE.jsonl.gz ...]
"""

import argparse
import gzip
import json
import pathlib
import random
import tempfile
import time

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from jaxtrain.corpus.inputs import ReadingConfig, plan, read, read_documents

TURNS = 3


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--data", nargs="*", default=[], metavar="FILE")
    flags = parser.parse_args()
    if flags.data:
        texts = [document.text for document in read_documents(flags.data)]
    else:
        texts = made_up(flags.megabytes)
    with tempfile.TemporaryDirectory() as folder:
        num_bytes = write(pathlib.Path(folder), texts)
        print(f"{len(texts):,} documents, {num_bytes / 1e6:.1f} MB as JSON Lines")
        for path in sorted(pathlib.Path(folder).iterdir()):
            secs = min(measure(str(path), len(texts)) for _ in range(TURNS))
            print(f"{path.name:18} {num_bytes / 1e6 / secs:8.1f} MB/s per core")


def made_up(megabytes: float) -> list[str]:
    """Texts of 3 KB in mean, one character in a hundred outside ASCII, lines of a dozen words."""
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(5000)]
    words += ["naïve", "“quoted”", "日本語"] * 60
    texts, size = [], 0
    while size < megabytes * 1e6:
        lines = [" ".join(rng.choices(words, k=12)) for _ in range(rng.randint(1, 80))]
        texts.append("\n".join(lines))
        size += len(texts[-1].encode())
    return texts


def write(folder: pathlib.Path, texts: list[str]) -> int:
    """Writes every format; returns the size of the first."""
    rows = [{"id": str(number), "text": text, "url": "u"} for number, text in enumerate(texts)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    (folder / "x.jsonl").write_bytes(lines)
    (folder / "x.jsonl.gz").write_bytes(gzip.compress(lines, 6))
    (folder / "x.jsonl.zst").write_bytes(zstandard.compress(lines))
    (folder / "x.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), folder / "x.parquet", row_group_size=10_000)
    return len(lines)


def measure(path: str, num_documents: int) -> float:
    """CPU seconds to read a file."""
    reading = ReadingConfig()
    begin = time.process_time()
    count = sum(1 for unit in plan([path], reading) for _ in read(unit, reading))
    secs = time.process_time() - begin
    if count != num_documents:
        raise SystemExit(f"{path}: {count} documents instead of {num_documents}")
    return secs


if __name__ == "__main__":
    main()
