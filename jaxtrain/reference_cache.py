"""A reference policy's log-probabilities of all answers, computed once and kept by content.

    WORKDIR/reference/SOURCE-KEY.npy     float32 [documents of the store], nats; then their SHA-256

The key is a hash of the store's fingerprint, of the reference's shape and parameters and of the
precision it ran in, never of a path: another store, reference or recipe has another file, and the
same ones find theirs again. The primary process reads and writes; all compute, each with its own
rows.
"""

import dataclasses
import hashlib
import io
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain import config as config_lib
from jaxtrain import files
from jaxtrain.data.metadata import sha256_json
from jaxtrain.data.plan_rows import answer_rows
from jaxtrain.data.sources import Source
from jaxtrain.lora.fingerprint import fingerprint
from jaxtrain.losses.answers import answer_logprobs
from jaxtrain.models.parameters import flatten
from jaxtrain.parallel import processes
from jaxtrain.progress import show_count
from jaxtrain.stage import Feed
from jaxtrain.train.program import Program

_DIRECTORY = "reference"
_VERSION = 2  # of how log-probabilities are computed and kept
_DIGEST_BYTES = hashlib.sha256().digest_size

Compute = Callable[[Mapping[str, Any], Any], jax.Array]


def run_ahead(name: str, chunk_tokens: int, recipe: str, workdir: pathlib.Path, feed: Feed) -> Feed:
    """Runs the frozen model `name` over all answers; batches then bring what it said.

    Args:
      chunk_tokens: as of the loss.
      recipe: of precision, that the reference runs in.

    Returns:
      The feed without the model.
    """
    program = feed.program
    other = program.others[name]
    weights = flatten(feed.frozen[other.tree])
    fingerprints = {path: fingerprint(leaf) for path, leaf in weights.items()}
    identity = [_VERSION, recipe, config_lib.to_plain(other.config), fingerprints]
    compute = _computation(program, name, chunk_tokens)
    size = feed.source.batch_size(0)

    def references(source: Source) -> np.ndarray:
        key = sha256_json([*identity, source.store.metadata.fingerprint])
        path = workdir / _DIRECTORY / f"{source.name}-{key[:16]}.npy"
        if (found := _kept(path, source)) is not None:
            return found
        found = _all_logprobs(compute, feed, source, size)
        if processes.is_primary():
            content = io.BytesIO()
            np.save(content, found)
            with files.write_whole(path) as file:
                file.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())
        return found

    others = {each: held for each, held in program.others.items() if each != name}
    program = dataclasses.replace(program, others=others)
    return Feed(
        program,
        {tree: feed.frozen[tree] for tree in program.abstract_frozen},
        feed.source.with_references({s.name: references(s) for s in feed.source.sources}),
        {
            each: held.with_references({each: references(held.source)})
            for each, held in feed.heldout.items()
        },
    )


def _computation(program: Program, name: str, chunk_tokens: int) -> Compute:
    """(frozen trees, batch) -> the log-probabilities [B, Q], whole on each device."""

    def logprobs(frozen: Mapping[str, Any], batch: Any) -> jax.Array:
        other = program.others[name]
        return answer_logprobs(other.bind(frozen[other.tree]), batch, chunk_tokens)

    return jax.jit(logprobs, out_shardings=NamedSharding(program.mesh, PartitionSpec()))


def _all_logprobs(compute: Compute, feed: Feed, source: Source, size: int) -> np.ndarray:
    """Of each document of a store, in batches of `size` rows."""
    started, program = time.monotonic(), feed.program
    found = np.full(source.store.num_documents, np.nan, np.float32)
    own = answer_rows(source, size, program.local_rows(size))
    with show_count("reference", source.store.num_documents, "answers") as done:
        for mine, whole in zip(own, answer_rows(source, size), strict=True):
            logprobs = np.asarray(compute(feed.frozen, program.put(mine.batch, size)))
            found[whole.documents[whole.valid]] = logprobs[whole.valid]
            done(int(np.isfinite(found).sum()))
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise ValueError(
            f"the reference gives answer {bad[0]} of {source.store.path} the log-probability "
            f"{found[bad[0]]}; its weights or its precision are not in order"
        )
    if processes.is_primary():
        secs = time.monotonic() - started
        print(f"reference: ran over {len(found):,} answers of {source.name} in {secs:.1f} s")
    return found


def _kept(path: pathlib.Path, source: Source) -> np.ndarray | None:
    """What the primary process finds under a key; None where there is nothing."""
    shape = (source.store.num_documents,)
    found = _read(path, shape) if processes.is_primary() and path.exists() else None
    if jax.process_count() == 1:
        return found
    is_there = multihost_utils.broadcast_one_to_all(np.bool_(found is not None))
    if not is_there:
        return None
    given = np.zeros(shape, np.float32) if found is None else found
    return np.asarray(multihost_utils.broadcast_one_to_all(given))


def _read(path: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray:
    whole = path.read_bytes()
    content, digest = whole[:-_DIGEST_BYTES], whole[-_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{path} is damaged; delete it, and the reference runs again")
    found = np.load(io.BytesIO(content))
    if found.shape != shape or found.dtype != np.float32:
        raise ValueError(f"{path} holds {found.dtype} of shape {found.shape}; delete it")
    return found
