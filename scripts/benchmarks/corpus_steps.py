"""MB/s per core of every step of the corpus stage, on English and on Chinese text.

Each step runs alone, on the same documents, in this process; CPU time counts, the best of three
turns. A global step's passes are summed. Without --data the texts are made up (words and characters
by Zipf's law, in sentences, lines and paragraphs, one document in ten a copy of another), so that
figures of two machines can be compared; real text is a JSON Lines file, plain or gzipped.

    python scripts/benchmarks/corpus_steps.py [STEP ...] [--megabytes=8] [--data=FILE ...]
        [--set STEP.OPTION=VALUE ...] [--json]
"""

import argparse
import ast
import gzip
import importlib
import json
import pathlib
import pkgutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxtrain.corpus import steps
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Workspace

TURNS = 3
CHUNK_BYTES = 4 << 20
SYLLABLES = "an ar be ca con de di en er es ex for gen in is la le lo ma men mi na ne no on or pa "
SYLLABLES += "per po pre pro ra re ri ro sa se si so sta ta te ter ti to tra tu un ver vi"
STOP_WORDS = ["the", "of", "and", "to", "in", "that", "have", "with", "be", "is", "for", "it"]


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [module.name for module in pkgutil.iter_modules(steps.__path__)]
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"all of {', '.join(names)}")
    parser.add_argument("--megabytes", type=float, default=8, help="of each synthetic text")
    parser.add_argument("--data", nargs="*", default=[], help="JSON Lines with `text`, or .txt")
    parser.add_argument("--set", nargs="*", default=[], metavar="STEP.OPTION=VALUE")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    flags = parser.parse_args()
    texts = {pathlib.Path(path).name: read(path) for path in flags.data} or {
        "English": synthetic("en", flags.megabytes),
        "Chinese": synthetic("zh", flags.megabytes),
    }
    results = {}
    for name in flags.steps or names:
        results[name] = {kind: measure(name, flags.set, docs) for kind, docs in texts.items()}
        if not flags.json:
            cells = [
                f"{kind}: {cell}"
                if isinstance(cell, str)
                else f"{kind}: {cell['mb_per_s']:.1f} MB/s, kept {cell['kept']:.3f}"
                for kind, cell in results[name].items()
            ]
            print(f"{name:26}", "   ".join(cells), flush=True)
    if flags.json:
        print(json.dumps(results))


def measure(name: str, overrides: Sequence[str], documents: list[Document]) -> dict | str:
    """The rate of one step and the share of documents that it kept, or why it cannot run."""
    module = importlib.import_module(f"{steps.__name__}.{name}")
    options = {}
    for override in overrides:
        path, _, value = override.partition("=")
        if path.startswith(f"{name}."):
            options[path.partition(".")[2]] = parse(value)
    chunks = list(in_chunks(documents))
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        try:
            config = module.Config(**options)
            if hasattr(module, "fit"):
                module.check(config)
                module.fit(config, Workspace(folder, Serial()))
            step = module.make(config, Workspace(folder))
        except (ValueError, TypeError) as error:
            return str(error)
        turns = [one_turn(step, chunks, folder / str(turn)) for turn in range(TURNS)]
    megabytes = sum(document.num_bytes for document in documents) / 1e6
    kept = turns[0][1]
    return {
        "mb_per_s": megabytes / min(seconds for seconds, _ in turns),
        "kept": kept / len(documents),
    }


def one_turn(step: Any, chunks: list[list[Document]], scratch: pathlib.Path) -> tuple[float, int]:
    """CPU seconds, and how many documents were kept."""
    scratch.mkdir()
    start = time.process_time()
    if hasattr(step, "observe"):
        paths = []
        for index, chunk in enumerate(chunks):
            paths.append(scratch / f"observed-{index}.npz")
            np.savez(paths[-1], **step.observe(chunk))
        step.decide(paths, Serial(), scratch)
        outcomes = [step.apply(index, chunk, scratch) for index, chunk in enumerate(chunks)]
    else:
        outcomes = [step(chunk) for chunk in chunks]
    seconds = time.process_time() - start
    return seconds, sum(outcome.dropped is None for chunk in outcomes for outcome in chunk)


class Serial:
    """An executor of this one process, so that its CPU time is all there is."""

    num_workers = 1

    def map(self, function: Callable, items: Iterable) -> Iterator:
        """One item after the other."""
        return map(function, items)


def in_chunks(documents: list[Document]) -> Iterator[list[Document]]:
    """Consecutive documents of about CHUNK_BYTES together."""
    chunk, size = [], 0
    for document in documents:
        chunk.append(document)
        size += document.num_bytes
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def read(path: str) -> list[Document]:
    """The documents of a JSON Lines file; a .txt file cut into pieces of about 3,000 characters."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        if ".txt" in path:
            text = file.read().replace("\r\n", "\n")
            texts = [text[start : start + 3000] for start in range(0, len(text), 3000)]
        else:
            texts = [json.loads(line)["text"] for line in file if line.strip()]
    return as_documents(texts, "zh" if any("一" <= c <= "鿿" for c in texts[0]) else "en")


def synthetic(language: str, megabytes: float) -> list[Document]:
    """Documents of log-normal length, 2,500 bytes in the median, every tenth a copy."""
    rng = np.random.default_rng(0)
    if language == "en":
        parts = SYLLABLES.split()
        lengths = rng.integers(1, 5, 30_000)
        words = STOP_WORDS + ["".join(rng.choice(parts, length)) for length in lengths]
        space, ends, comma, bytes_a_word = " ", [".", ".", "?", "!"], ",", 6.5
    else:
        words = [chr(0x4E00 + int(code)) for code in rng.permutation(20_900)[:6000]]
        space, ends, comma, bytes_a_word = "", ["。", "。", "？", "！"], "，", 3.2
    chances = 1 / (np.arange(len(words)) + 2.7)
    chances /= chances.sum()
    texts: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        if texts and len(texts) % 10 == 9:
            texts.append(texts[int(rng.integers(len(texts)))])
        else:
            count = int(rng.lognormal(np.log(2500 / bytes_a_word), 0.8)) + 10
            drawn = [words[i] for i in rng.choice(len(words), count, p=chances)]
            texts.append(punctuated(drawn, space, ends, comma, rng))
        size += len(texts[-1].encode())
    return as_documents(texts, language)


def punctuated(
    words: list[str], space: str, ends: list[str], comma: str, rng: np.random.Generator
) -> str:
    """Sentences of 6 to 25 words, lines of 1 to 5 sentences, a blank line after every third."""
    lines, sentences, position = [], [], 0
    while position < len(words):
        length = int(rng.integers(6, 26))
        sentence = words[position : position + length]
        middle = len(sentence) // 2
        sentence[middle] += comma
        sentences.append(space.join(sentence).capitalize() + ends[int(rng.integers(len(ends)))])
        position += length
        if rng.random() < 0.4:
            lines.append(space.join(sentences))
            sentences = []
            if len(lines) % 3 == 0:
                lines.append("")
    return "\n".join([*lines, space.join(sentences)]).strip()


def as_documents(texts: list[str], language: str) -> list[Document]:
    """With the fields that earlier steps would have written."""
    fields = {"language": language, "language_score": 0.99}
    return [Document(f"{i}", text, "benchmark", fields) for i, text in enumerate(texts)]


def parse(value: str) -> Any:
    """A Python literal, or the string as it stands."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


if __name__ == "__main__":
    main()
