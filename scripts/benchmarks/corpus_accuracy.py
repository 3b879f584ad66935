"""How right the corpus stage is on real text: near-duplicates, languages, planted benchmark items.

Reads the public files beside the project (../shared/data): versions of documents in groups, the
Declaration of Human Rights in 40 languages, GSM8K and HumanEval. What trained filters and the
masking of personal data reach stands in text_classifiers.py.

    python scripts/benchmarks/corpus_accuracy.py [--shared=../shared]
"""

import argparse
import collections
import gzip
import itertools
import json
import pathlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.executors import LocalExecutor
from jaxtrain.corpus.language_id import bundled_model
from jaxtrain.corpus.step import Outcome, Workspace
from jaxtrain.corpus.steps import decontaminate, drop_near_duplicates

_LEVELS = (0.8, 0.9)  # Jaccard similarities from which on pairs are counted


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=pathlib.Path, default=pathlib.Path("../shared"))
    data = parser.parse_args().shared / "data"
    near_duplicates(data)
    languages(data)
    planted_items(data)


def near_duplicates(data: pathlib.Path) -> None:
    """Precision and recall of the default preset on versions of documents.

    Precision: of removed documents, those that name one of their own group. Recall: of pairs of a
    group, those of which at most one document stays.
    """
    print("near-duplicates   removed  precision   pairs of a group: all, recall", end="")
    print("".join(f"   ≥ {level}, recall" for level in _LEVELS))
    step = drop_near_duplicates.make(drop_near_duplicates.Config(), Workspace(pathlib.Path()))
    for name in ("en-trl-docs", "zh-rust-book"):
        rows = list(_rows(data / "neardup" / f"{name}.jsonl.gz"))
        group = {row["id"]: row["group"] for row in rows}
        outcomes = _judged(step, [Document(row["id"], row["text"], name, {}) for row in rows])
        named = [
            (out.document.id, out.because.partition(" to ")[2]) for out in outcomes if out.dropped
        ]
        right = sum(group[one] == group[other] for one, other in named)
        kept = {out.document.id for out in outcomes if not out.dropped}
        grams = {row["id"]: _five_grams(row["text"]) for row in rows}
        pairs = [
            (len(grams[a] & grams[b]) / len(grams[a] | grams[b]), not {a, b} <= kept)
            for a, b in itertools.combinations(group, 2)
            if group[a] == group[b]
        ]
        print(f"{name:17} {len(named):7} {right / len(named):10.3f}", end="")
        for level in (0, *_LEVELS):
            found = [is_found for similarity, is_found in pairs if similarity >= level]
            print(f"   {len(found):6}, {np.mean(found):.3f}", end="")
        print()
    print()


def _five_grams(text: str) -> set[tuple[str, ...]]:
    """Runs of five words, a Chinese character a word: a measure of its own."""
    words = re.findall(
        r"[\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3400-\u4dbf\u4e00-\u9fff]+", text.lower()
    )
    return {tuple(words[at : at + 5]) for at in range(len(words) - 4)}


def languages(data: pathlib.Path) -> None:
    """Share of paragraphs, and of five in a row, whose language is told right."""
    texts = collections.defaultdict(list)
    for row in _rows(data / "udhr" / "udhr.jsonl.gz"):
        texts[row["lang"], row["variant"]].append(" ".join(row["text"].split()))
    print("languages         texts  right")
    for size, what in ((1, "paragraphs"), (5, "five together")):
        labelled = [
            (language, " ".join(paragraphs[at : at + size]))
            for (language, _), paragraphs in texts.items()
            for at in range(0, len(paragraphs), size)
        ]
        guesses = bundled_model().guess([text for _, text in labelled])
        right = [
            guess.language == language
            for guess, (language, _) in zip(guesses, labelled, strict=True)
        ]
        print(f"{what:16} {len(right):6} {np.mean(right):6.3f}")
    print()


def planted_items(data: pathlib.Path) -> None:
    """Items of benchmarks found when planted in pages in five ways; clean documents lost."""
    files = {
        "gsm8k": (data / "eval/gsm8k-test.jsonl.gz", "question", "answer"),
        "humaneval": (data / "eval/HumanEval.jsonl.gz", "prompt", "canonical_solution"),
    }
    specs = tuple(f"{name}={path}:{','.join(keys)}" for name, (path, *keys) in files.items())
    config = decontaminate.Config(specs)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(pathlib.Path(folder))
        decontaminate.fit(config, workspace)
        step = decontaminate.make(config, workspace)
    chapters = list(_rows(data / "books-en" / "jane-austen_pride-and-prejudice.jsonl.gz"))
    print("planted items    planted  found")
    for name, (path, question, _) in files.items():
        planted = [
            Document(f"{name}-{number}", each, name, {})
            for number, row in enumerate(_rows(path))
            for each in _five_ways(row[question], chapters[number % len(chapters)]["text"][:2000])
        ]
        found = sum(out.dropped is not None for out in _judged(step, planted))
        print(f"{name:16} {len(planted):7} {found / len(planted):6.3f}")
    clean = [
        Document(f"{path.name}-{number}", row["text"], path.name, {})
        for pattern in ("books-en/*.jsonl.gz", "docs-zh/*.jsonl.gz")
        for path in sorted(data.glob(pattern))
        for number, row in enumerate(_rows(path))
    ]
    lost = sum(out.dropped is not None for out in _judged(step, clean))
    print(f"clean documents  {len(clean):7}  lost: {lost}")


def _five_ways(text: str, host: str) -> list[str]:
    """An item in the middle of another text: as it is, wrapped, re-cased, bare, punctuated."""
    head, tail = host[: len(host) // 2], host[len(host) // 2 :]
    copies = [
        text,
        "\n".join(re.findall(r"\S+(?:\s+\S+){0,4}", text)),
        text.swapcase(),
        re.sub(r"[^\w\s]|_", " ", text),
        re.sub(r"(\w) (\w)", r"\1, \2", text).replace("'", "’").replace("\n", "\u2028"),
    ]
    return [f"{head} {copy} {tail}" for copy in copies]


def _judged(step: Any, documents: Sequence[Document]) -> Sequence[Outcome]:
    """A global step on documents as one chunk."""
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        np.savez(folder / "observed.npz", **step.observe(documents))
        scratch = folder / "scratch"
        scratch.mkdir()
        step.decide([folder / "observed.npz"], LocalExecutor(1), scratch)
        return step.apply(0, documents, scratch)


def _rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        yield from map(json.loads, lines)


if __name__ == "__main__":
    main()
