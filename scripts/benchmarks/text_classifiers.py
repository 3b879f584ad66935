"""How well and how fast the trained filters judge real text: personal data, quality, perplexity.

Reads the public files beside the project (../shared/data): spans of made-up personal data, pages
with human quality labels, articles of an encyclopedia, word lists. Speed is MB of UTF-8 per second
of CPU time of one core.

    OPENBLAS_NUM_THREADS=1 python scripts/benchmarks/text_classifiers.py [--shared=../shared]
"""

import argparse
import collections
import gzip
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxtrain.corpus import linear_classifier, ngram_model
from jaxtrain.corpus.bad_words import BadWords
from jaxtrain.corpus.linear_classifier import area_under_curve, sample
from jaxtrain.corpus.pii.find import find
from jaxtrain.corpus.words import ends_sentence, split_words

LABELS = {
    "EMAIL_ADDRESS": "email",
    "IBAN_CODE": "iban",
    "CREDIT_CARD": "bank card",
    "IP_ADDRESS": "ip address",
    "PHONE_NUMBER": "phone",
}
STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
FOLDS = 10


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=pathlib.Path, default=pathlib.Path("../shared"))
    data = parser.parse_args().shared / "data"
    pages = [row["text"] for row in _rows(data / "web" / "c4_demo.jsonl.gz")]
    personal_data(data, pages)
    quality(data, pages)
    perplexity(data, pages)
    toxicity(data, pages)


def personal_data(data: pathlib.Path, pages: Sequence[str]) -> None:
    """Precision and recall of each kind on labelled sentences."""
    rows = json.loads(_read(data / "pii" / "presidio-synth_dataset_v2.json.gz"))
    labelled, found, right = (collections.Counter[str]() for _ in range(3))
    for row in rows:
        truth = [
            (span["start_position"], span["end_position"], LABELS[span["entity_type"]])
            for span in row["spans"]
            if span["entity_type"] in LABELS
        ]
        labelled.update(kind for _, _, kind in truth)
        for start, end, kind in find(row["full_text"]):
            found[kind] += 1
            right[kind] += any(
                start < last and first < end and kind == named for first, last, named in truth
            )
    print("personal data    labelled  found  precision  recall")
    for kind in LABELS.values():
        precision, recall = right[kind] / found[kind], right[kind] / labelled[kind]
        print(f"{kind:16} {labelled[kind]:8} {found[kind]:6} {precision:10.3f} {recall:7.3f}")
    print(f"speed on web pages: {_speed(lambda: [find(page) for page in pages], pages):.0f} MB/s\n")


def quality(data: pathlib.Path, pages: Sequence[str]) -> None:
    """Cross-validated area under the ROC curve against human labels, and of single figures."""
    for name in ("majority", "agreement"):
        rows = _rows(data / "web" / f"dclm-quality-{name}.jsonl.gz")
        texts = [row["text"] for row in rows]
        good = np.array([row["label"] for row in rows]) == 1
        print(f"quality, {len(rows)} pages of the labels by {name:12} AUC")
        results = {f"classifier, {FOLDS} folds": _cross_validated(texts, good)}
        for figure, values in _single_figures(texts).items():
            auc = area_under_curve(np.array(values, float), good)
            results[figure] = max(auc, 1 - auc) if auc is not None else 0.0
        for figure, auc in sorted(results.items(), key=lambda item: -item[1]):
            print(f"    {figure:44} {auc:.3f}")
    made = linear_classifier.train(sample(pages[:50], 50), sample(pages[50:100], 50))
    print(f"speed on web pages: {_speed(lambda: made.score(pages), pages):.0f} MB/s\n")


def _cross_validated(texts: Sequence[str], good: np.ndarray) -> float:
    folds = np.random.default_rng(0).permutation(len(texts)) % FOLDS
    scores = np.zeros(len(texts))
    for fold in range(FOLDS):
        held_out = np.flatnonzero(folds == fold).tolist()
        learnt = np.flatnonzero(folds != fold).tolist()
        samples = [
            sample([texts[i] for i in learnt if good[i] == wanted], len(texts))
            for wanted in (True, False)
        ]
        scores[held_out] = linear_classifier.train(*samples).score([texts[i] for i in held_out])
    auc = area_under_curve(scores, good)
    assert auc is not None, "the labels hold both classes"
    return auc


def _single_figures(texts: Sequence[str]) -> dict[str, list[Any]]:
    words = [split_words(text) for text in texts]
    lines = [[line for line in text.split("\n") if line.strip()] for text in texts]
    return {
        "number of words": [len(each) for each in words],
        "mean word length": [np.mean([len(word) for word in each]) for each in words],
        "share of different words": [len(set(each)) / len(each) for each in words],
        "mean line length": [np.mean([len(line) for line in each]) for each in lines],
        "lines that end a sentence": [
            np.mean([ends_sentence(line.strip()) for line in each]) for each in lines
        ],
        "share of letters": [np.mean([c.isalpha() for c in text]) for text in texts],
        "share of capitals": [np.mean([c.isupper() for c in text]) for text in texts],
        "share of digits": [np.mean([c.isdigit() for c in text]) for text in texts],
        "share of Gopher's stop words": [
            np.mean([word.lower() in STOP_WORDS for word in each]) for each in words
        ],
    }


def perplexity(data: pathlib.Path, pages: Sequence[str]) -> None:
    """Quantiles of perplexity per word under a model of encyclopedia articles."""
    articles = _read(data / "web" / "wiki_demo.txt.gz").decode().split("\n")
    rows = _rows(data / "web" / "dclm-quality-majority.jsonl.gz")
    labels = np.array([row["label"] for row in rows]) == 1
    print("perplexity per word   3 in 10   6 in 10   AUC against human labels")
    for order in (3, 5):
        made = ngram_model.train(articles, order)
        values = made.perplexities(pages)
        auc = area_under_curve(-made.perplexities([row["text"] for row in rows]), labels)
        head, middle = np.quantile(values, [0.3, 0.6])
        speed = _speed(lambda made=made: made.perplexities(pages), pages)
        print(f"{order} words {head:20.0f} {middle:9.0f} {auc:8.3f}   {speed:.0f} MB/s")
    print()


def toxicity(data: pathlib.Path, pages: Sequence[str]) -> None:
    """Pages that hold a word of the English list."""
    words = BadWords.read(str(data / "toxicity" / "ldnoobw-en.txt"))
    for name, texts in (
        ("C4, made without such pages", pages),
        ("DCLM pages", [row["text"] for row in _rows(data / "web/dclm-quality-majority.jsonl.gz")]),
    ):
        held = sum(words.find(text.lower()) is not None for text in texts)
        print(f"listed word in {held} of {len(texts)} ({name})")
    speed = _speed(lambda: [words.find(page.lower()) for page in pages], pages)
    print(f"speed on web pages: {speed:.0f} MB/s")


def _speed(judge: Callable[[], Any], texts: Sequence[str]) -> float:
    """MB per second of CPU time, the best of three turns."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        judge()
        seconds.append(time.process_time() - start)
    return sum(len(text.encode()) for text in texts) / min(seconds) / 1e6


def _read(path: pathlib.Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _read(path).split(b"\n") if line.strip()]


if __name__ == "__main__":
    main()
