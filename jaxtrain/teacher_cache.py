"""A teacher's likeliest next ids at every token of the data, computed once (see `data/teacher.py`).

    WORKDIR/teacher/SOURCE-KEY/

The key is a hash of the store, of the rows in which the teacher sees it, of the teacher's shape and
parameters, its precision, the number of ids and the temperature. A start that was killed on the way
goes on where it stopped. The primary process writes; all compute, each with its own rows.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain import config as config_lib
from jaxtrain.data.metadata import sha256_json
from jaxtrain.data.plan_rows import plan_rows
from jaxtrain.data.sources import Source
from jaxtrain.data.teacher import TeacherStore, rows_of
from jaxtrain.data.teacher_writer import TeacherWriter
from jaxtrain.lora.fingerprint import fingerprint
from jaxtrain.losses.teacher import topk_logprobs
from jaxtrain.models.parameters import flatten
from jaxtrain.parallel import processes
from jaxtrain.progress import show_count
from jaxtrain.stage import Feed
from jaxtrain.train.program import Program

_DIRECTORY = "teacher"


class Listing(NamedTuple):
    """What is kept of a teacher."""

    k: int
    temperature: float
    num_shared: int  # ids that teacher and student have
    chunk_tokens: int
    recipe: str  # of precision, that the teacher runs in


def run_ahead(name: str, listing: Listing, workdir: pathlib.Path, feed: Feed) -> Feed:
    """Runs the frozen model `name` over all tokens; batches then bring what it said.

    Returns:
      The feed without the model.
    """
    program = feed.program
    teacher = program.others[name]
    weights = flatten(feed.frozen[teacher.tree])
    settings = {
        "model": config_lib.to_plain(teacher.config),
        "weights": {path: fingerprint(leaf) for path, leaf in weights.items()},
        "temperature": listing.temperature,
        "num_shared": listing.num_shared,
        "recipe": listing.recipe,
    }
    compute = _computation(program, name, listing)
    size = feed.source.batch_size(0)

    def output(source: Source) -> TeacherStore:
        identity = [source.store.metadata.fingerprint, rows_of(source), listing.k, settings]
        path = workdir / _DIRECTORY / f"{source.name}-{sha256_json(identity)[:16]}"
        _write(path, compute, feed, source, size, listing.k, settings)
        return TeacherStore(str(path))

    program = dataclasses.replace(program, others={})
    return Feed(
        program,
        {tree: feed.frozen[tree] for tree in program.abstract_frozen},
        feed.source.with_teachers({s.name: output(s) for s in feed.source.sources}),
        {
            each: held.with_teachers({each: output(held.source)})
            for each, held in feed.heldout.items()
        },
    )


def _computation(
    program: Program, name: str, listing: Listing
) -> Callable[[Mapping[str, Any], Any], tuple[jax.Array, jax.Array]]:
    """(frozen trees, batch) -> (ids, log-probabilities) [B, T, k], whole on each device."""

    def likeliest(frozen: Mapping[str, Any], batch: Any):
        other = program.others[name]
        model = other.bind(frozen[other.tree])
        return topk_logprobs(
            model,
            model.hidden(batch.inputs, batch.positions, batch.segment_ids, None),
            listing.k,
            listing.temperature,
            num_shared=listing.num_shared,
            chunk_tokens=listing.chunk_tokens,
        )

    return jax.jit(likeliest, out_shardings=NamedSharding(program.mesh, PartitionSpec()))


def _write(
    path: pathlib.Path,
    compute: Callable[..., tuple[jax.Array, jax.Array]],
    feed: Feed,
    source: Source,
    size: int,
    k: int,
    settings: dict[str, Any],
) -> None:
    """What the teacher says of a source, made or gone on with in batches of `size` rows."""
    program, writer = feed.program, None
    if processes.is_primary():
        writer = TeacherWriter(str(path), source, k=k, settings=settings)
    first = processes.agreed(writer.num_rows if writer else 0)
    own = plan_rows(source, size, program.local_rows(size), first=first)
    with show_count("teacher", source.num_rows, "rows") as done:
        for mine, whole in zip(own, plan_rows(source, size, first=first), strict=True):
            ids, logprobs = compute(feed.frozen, program.put(mine.batch, size))
            if writer:
                writer.write(whole, np.asarray(ids), np.asarray(logprobs))
            done(whole.stop_row)
    if writer:
        writer.finish()
    processes.barrier("teacher")
