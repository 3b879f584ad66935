"""What finding near-duplicates costs, in documents per second and core, side by side in one run.

Documents are stretches of 1.1 KB of the Python standard library, a fifth of them copies with a few
words changed. Each variant goes from texts to flags, the best of some turns counts, in CPU time of
this process and its threads. Ours is the whole step: shingles, signatures, files, bands, and the
comparison of candidates, which the others leave out.

    python scripts/benchmarks/minhash.py [--documents=20000] [--turns=3] [--json]

Needs `rensa` for its row, and prints what is missing without it.
"""

import argparse
import importlib
import importlib.util
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.executors import LocalExecutor
from jaxtrain.corpus.step import Workspace
from jaxtrain.corpus.steps import drop_near_duplicates

DOCUMENT_CHARACTERS = 1_100
COPIES_FRAC = 0.2
SHINGLE, BANDS, ROWS, SEED = 5, 16, 8, 1
DATASKETCH_DOCUMENTS = 1_000  # it is slow, and linear


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    results = measure(texts(options.documents), options.turns)
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'':58}documents/s    flagged")
    for name, (rate, flagged) in results.items():
        print(f"{name:58}{rate:11,.0f}{flagged:11.3f}")


def texts(number: int) -> list[str]:
    """Documents of 1.1 KB, some of them changed copies of others."""
    rng = np.random.default_rng(0)
    pieces: list[str] = []
    for path in sorted(pathlib.Path(json.__file__).parents[1].rglob("*.py")):
        text = path.read_text(errors="ignore")
        starts = range(0, len(text) - DOCUMENT_CHARACTERS, DOCUMENT_CHARACTERS)
        pieces += [text[start : start + DOCUMENT_CHARACTERS] for start in starts]
        if len(pieces) >= number:
            break
    originals = pieces[: int(number * (1 - COPIES_FRAC))]
    copies = [changed(originals[i], rng) for i in range(number - len(originals))]
    mixed = originals + copies
    return [mixed[i] for i in rng.permutation(len(mixed))]


def changed(text: str, rng: np.random.Generator) -> str:
    """The text with three of its words replaced."""
    words = text.split(" ")
    for at in rng.integers(len(words), size=3):
        words[at] = "changed"
    return " ".join(words)


def measure(documents: Sequence[str], turns: int) -> dict[str, tuple[float, float]]:
    """(documents per second of CPU, share flagged) of every variant."""
    some = documents[:DATASKETCH_DOCUMENTS]
    shape = f"{SHINGLE} characters, {BANDS} × {ROWS}"
    variants: dict[str, tuple[Sequence[str], Callable[[Sequence[str]], int]]] = {
        f"this package, preset characters ({shape})": (documents, ours("characters")),
        "this package, preset fineweb (5 words, 14 × 8)": (documents, ours("fineweb")),
        f"datasketch, candidates ({shape}), {len(some)} documents": (some, datasketch),
    }
    if importlib.util.find_spec("rensa"):
        variants[f"rensa, candidates ({shape})"] = (documents, rensa)
    else:
        print("rensa is not installed: its row is missing")
    results = {}
    for name, (given, run) in variants.items():
        best = float("inf")
        flagged = 0
        for _ in range(turns):
            start = time.process_time()
            flagged = run(given)
            best = min(best, time.process_time() - start)
        results[name] = (len(given) / best, flagged / len(given))
    return results


def ours(preset: str) -> Callable[[Sequence[str]], int]:
    """The step from documents to outcomes."""

    def run(given: Sequence[str]) -> int:
        documents = [Document(str(i), text, "benchmark", {}) for i, text in enumerate(given)]
        with tempfile.TemporaryDirectory() as directory:
            folder = pathlib.Path(directory)
            config = drop_near_duplicates.Config(preset=preset)
            step = drop_near_duplicates.make(config, Workspace(folder / "models"))
            arrays: dict = dict(step.observe(documents))
            np.savez(folder / "0.npz", **arrays)
            step.decide([folder / "0.npz"], LocalExecutor(1), folder / "scratch")
            outcomes = step.apply(0, documents, folder / "scratch")
        return sum(outcome.dropped is not None for outcome in outcomes)

    return run


def shingle_sets(given: Sequence[str]) -> list[list[str]]:
    """The sets of character shingles as strings."""
    return [list({text[i : i + SHINGLE] for i in range(len(text) - SHINGLE + 1)}) for text in given]


def rensa(given: Sequence[str]) -> int:
    """Signatures, and flags of documents that share a band with another."""
    library = importlib.import_module("rensa")

    matrix = library.RMinHash.digest_matrix_from_token_sets(shingle_sets(given), BANDS * ROWS, SEED)
    index = library.RMinHashLSH(threshold=0.8, num_perm=BANDS * ROWS, num_bands=BANDS)
    return sum(index.query_duplicate_flags_matrix_one_shot(matrix))


def datasketch(given: Sequence[str]) -> int:
    """By datasketch, one object per document: those that share a band with an earlier one."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    flagged = 0
    for number, shingles in enumerate(shingle_sets(given)):
        signature = MinHash(num_perm=BANDS * ROWS, seed=SEED, scheme="affine64")
        signature.update_batch([shingle.encode() for shingle in shingles])
        flagged += bool(index.query(signature))
        index.insert(number, signature)
    return flagged


if __name__ == "__main__":
    main()
