"""What reading a token store and making batches cost, side by side in one run.

Makes a store of random tokens in a temporary directory, reads it once (so that the page cache is
warm) and takes turns between the variants; the best turn of each counts. Wall time and CPU time of
this process; worker processes and their start are in the wall time only.

    python scripts/benchmarks/data.py [--num_tokens=50000000] [--seq_len=512] [--batch_size=8]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorstore as ts

from jaxtrain.data.batches import AnyBatch
from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.data.metadata import Tokenization
from jaxtrain.data.packing import make_plan
from jaxtrain.data.plan_rows import plan_rows
from jaxtrain.data.store import Store
from jaxtrain.data.teacher import TeacherStore
from jaxtrain.data.teacher_writer import TeacherWriter
from jaxtrain.data.writer import PartWriter, create
from jaxtrain.types import Batch

POSITIONS = 1 << 17  # read per turn of the raw readers, and per step of the loader's block
TURNS = 5
TAUGHT_TOKENS = 1_000_000  # of the stores with something beside their tokens
TOP_K = 32


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_tokens", type=int, default=50_000_000, help="size of the store")
    parser.add_argument("--seq_len", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = measure(directory, options)
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'':42} ns/token wall    CPU   M tokens/s")
    for name, (wall, cpu) in results.items():
        print(f"{name:42} {wall:13.2f} {cpu:6.2f} {1000 / wall:12.1f}")


def measure(directory: str, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Nanoseconds per token (wall, CPU) of every variant."""
    write_store(directory, options.num_tokens)
    store = Store(directory)
    store.verify()
    variants = raw_readers(store, directory, options.seq_len)
    variants |= loaders(directory, options)
    variants |= beside_tokens(f"{directory}/beside", options)
    results = best_of_turns(variants)
    start, cpu = time.perf_counter(), time.process_time()
    make_plan("best_fit", store.document_ends, options.seq_len)
    per_document = 1e9 / store.num_documents
    results["planning best_fit (per document)"] = (
        (time.perf_counter() - start) * per_document,
        (time.process_time() - cpu) * per_document,
    )
    return results


def write_store(
    directory: str, num_tokens: int, max_len: int | None = None, answers: str | None = None
) -> None:
    """Random ids in documents of log-normal length, 400 tokens in the mean; or in pairs of them."""
    rng = np.random.default_rng(0)
    tokenization = Tokenization(32_768, {"mask": 0}, "", {"answers": answers} if answers else {})
    lengths = rng.lognormal(np.log(400) - 0.5, 1, num_tokens // 400 // 2 * 2).astype(int) + 2
    lengths = lengths if max_len is None else lengths.clip(max=max_len)
    with PartWriter(directory, tokenization) as writer:
        for number, length in enumerate(lengths):
            ids = rng.integers(0, 32_768, length)
            joins = answers is not None and number % 2 == 1
            name = str(number)
            writer.add(ids, document_id=name, source="random", num_text_bytes=0, joins=joins)
    create(directory, tokenization, "", writer.parts)


def raw_readers(store: Store, directory: str, seq_len: int) -> dict[str, Callable[[], int]]:
    """The same random rows through each engine; every call returns how many tokens it read."""
    num_rows = POSITIONS // seq_len
    lengths = np.full(num_rows, seq_len)
    offsets = np.arange(num_rows) * seq_len
    out = np.empty(POSITIONS, np.int32)
    rng = np.random.default_rng(1)
    by_ranges = Store(directory)
    by_ranges._files._local = (
        None  # as if it were remote: tensorstore's file driver, without the mapping
    )
    sharded = zarr_copy(store, directory)

    def starts() -> np.ndarray:
        return rng.integers(0, store.num_tokens - seq_len, num_rows)

    def mapped() -> int:
        store.read(starts(), lengths, offsets, out)
        return POSITIONS

    def ranges() -> int:
        by_ranges.read(starts(), lengths, offsets, out)
        return POSITIONS

    def zarr() -> int:
        reads = [sharded[start : start + seq_len].read() for start in starts().tolist()]
        for offset, read in zip(offsets.tolist(), reads, strict=True):
            out[offset : offset + seq_len] = read.result()
        return POSITIONS

    return {
        "read: memory map": mapped,
        "read: tensorstore, byte ranges of a file": ranges,
        "read: tensorstore, zarr3 sharded array": zarr,
    }


def zarr_copy(store: Store, directory: str) -> ts.TensorStore:
    """The tokens as one zarr3 array: uncompressed inner chunks of 4,096 tokens in shards."""
    inner = {"name": "bytes", "configuration": {"endian": "little"}}
    shards = {
        "chunk_shape": [4096],
        "codecs": [inner],
        "index_codecs": [inner],
    }
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{directory}/zarr/"},
        "metadata": {
            "data_type": "uint16",
            "shape": [store.num_tokens],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 24]}},
            "codecs": [{"name": "sharding_indexed", "configuration": shards}],
        },
        "create": True,
    }
    array = ts.open(spec).result()
    tokens = np.empty(store.num_tokens, np.uint16)
    whole = np.array([store.num_tokens])
    store.read(np.array([0]), whole, np.array([0]), tokens)
    array.write(tokens).result()
    return array


def loaders(directory: str, options: argparse.Namespace) -> dict[str, Callable[[], int]]:
    """Batches made directly in blocks, and through Grain: in a thread and in worker processes."""
    num_steps = max(16 * POSITIONS // (options.batch_size * options.seq_len), 1)
    variants: dict[str, Callable[[], int]] = {}
    for packing, objective, num_workers in (
        ("concat", "next_token", 0),
        ("concat_isolated", "next_token", 0),
        ("best_fit", "next_token", 0),
        ("best_fit", "masked_lm", 0),
        ("best_fit", "next_token", 1),
    ):
        config = DataConfig(
            sources={"random": SourceConfig(directory)},
            batch_size=options.batch_size,
            seq_len=options.seq_len,
            packing=packing,
            objective=objective,
            num_workers=num_workers,
        )
        loader = Loader(config, seed=0)
        name = f"loader: {packing}, {objective}"
        if num_workers:
            # One stream for all turns: the start of the process is not what is measured.
            stream = loader.iterate(0, 10**9)
            next(stream)
            variants[f"{name}, worker process"] = lambda stream=stream: take(stream, num_steps)
        else:
            variants[f"{name}, direct"] = lambda loader=loader: direct(loader, num_steps)
            variants[f"{name}, Grain"] = lambda loader=loader: take(
                loader.iterate(0, num_steps), num_steps
            )
    return variants


def beside_tokens(directory: str, options: argparse.Namespace) -> dict[str, Callable[[], int]]:
    """Batches with what is served beside their tokens, of smaller stores, through Grain."""
    num_steps = max(16 * POSITIONS // (options.batch_size * options.seq_len), 1)
    settings = {"batch_size": options.batch_size, "seq_len": options.seq_len}
    settings |= {"packing": "best_fit"}
    write_store(directory, TAUGHT_TOKENS, max_len=options.seq_len)
    write_store(f"{directory}/pairs", TAUGHT_TOKENS, max_len=options.seq_len // 2, answers="pairs")
    text = DataConfig(sources={"random": SourceConfig(directory)}, **settings)
    pairs = DataConfig(sources={"random": SourceConfig(f"{directory}/pairs")}, **settings)
    (source,) = Loader(text, seed=0).sources
    writer = TeacherWriter(f"{directory}/teacher", source, k=TOP_K, settings={})
    rng = np.random.default_rng(0)
    for block in plan_rows(source, 64):
        shape = (*block.shape, TOP_K)
        writer.write(block, rng.integers(0, 32_768, shape), -rng.random(shape, np.float32))
    writer.finish()
    teachers = {"random": TeacherStore(f"{directory}/teacher")}
    variants = {
        "loader: best_fit, the same store alone, Grain": Loader(text, seed=0),
        "loader: best_fit, pairs, Grain": Loader(pairs, seed=0),
        f"loader: best_fit, a teacher's {TOP_K} ids, Grain": Loader(text, 0, teachers=teachers),
    }
    return {
        name: lambda loader=loader: take(loader.iterate(0, num_steps), num_steps)
        for name, loader in variants.items()
    }


def direct(loader: Loader, num_steps: int) -> int:
    """Makes the batches of all steps in blocks, as the pipeline does."""
    per_step = loader.config.batch_size * loader.config.seq_len
    block = max(POSITIONS // per_step, 1)
    for start in range(0, num_steps, block):
        loader.block(start, min(start + block, num_steps))
    return num_steps * per_step


def take(batches: Iterator[AnyBatch], num_steps: int) -> int:
    """Takes so many batches and returns how many positions they had."""
    taken = (next(batches) for _ in range(num_steps))
    return sum((b if isinstance(b, Batch) else b.tokens).inputs.size for b in taken)


def best_of_turns(variants: dict[str, Callable[[], int]]) -> dict[str, tuple[float, float]]:
    """Runs the variants in turns, so that a busy machine is unfair to all of them."""
    best = {name: (float("inf"), float("inf")) for name in variants}
    for _ in range(TURNS):
        for name, run in variants.items():
            start, cpu = time.perf_counter(), time.process_time()
            tokens = run()
            wall = (time.perf_counter() - start) * 1e9 / tokens
            cpu = (time.process_time() - cpu) * 1e9 / tokens
            best[name] = (min(best[name][0], wall), min(best[name][1], cpu))
    return best


if __name__ == "__main__":
    main()
