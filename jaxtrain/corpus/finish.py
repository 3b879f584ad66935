"""The end of a run: chunks become shards, reports become the card, `work/` goes.

Every file is whole or absent and the card is written last, so this too can stop anywhere.
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrain import files
from jaxtrain.corpus.amounts import Amount
from jaxtrain.corpus.baselines import compressor_bits_per_byte
from jaxtrain.corpus.card import make_card
from jaxtrain.corpus.card_markdown import write_markdown
from jaxtrain.corpus.chunks import merge_chunks, read_chunk
from jaxtrain.corpus.layout import Layout
from jaxtrain.corpus.ledger import Report
from jaxtrain.corpus.rejected import merge_rejected
from jaxtrain.corpus.segment import Job
from jaxtrain.corpus.split import HELDOUT, TRAIN
from jaxtrain.corpus.step import Executor

_SHARD_BYTES = 256_000_000  # of text in a file of the result, about


class ShardTask(NamedTuple):
    """Chunks that become one file."""

    parts: tuple[pathlib.Path, ...]
    target: pathlib.Path

    def __str__(self) -> str:
        return str(self.target)


def read_card(layout: Layout) -> dict[str, Any] | None:
    """The card of a whole corpus, None where there is none.

    Raises:
      ValueError: where a file of the corpus is no longer the one that the card describes.
    """
    if not layout.card.exists():
        return None
    card = files.read_json(layout.card)
    for name, written in card["outputs"].items():
        for file, sha256 in written["files"].items():
            output = layout.workdir / name / file
            if not output.exists() or files.sha256(output) != sha256:
                raise ValueError(
                    f"{output} is not the file that {layout.card} describes; restore it, or delete "
                    f"{layout.workdir} to write the corpus anew"
                )
    return card


def finish(job: Job, made_from: Mapping[str, Any], executor: Executor) -> dict[str, Any]:
    """Writes the shards and the card of a run whose passes are all done; returns the card."""
    layout = job.layout
    report = _whole_report(job)
    report.check()
    _refuse_nothing(report, layout)
    outputs = {
        name: _amount(report, name) | {"files": dict(_write_shards(job, name, executor))}
        for name in (TRAIN, HELDOUT)
    }
    rejected = [
        layout.segment(segment).rejected(name)
        for segment in range(job.segment + 1)
        for name in layout.segment(segment).done()
    ]
    merge_rejected(rejected, layout.rejected, job.config.rejected)
    baselines, num_compressed = compressor_bits_per_byte(_heldout(layout))
    outputs[HELDOUT]["compressed_bytes"] = num_compressed  # what the baselines are of: the first
    _keep_fates(job)
    card = make_card(made_from, report, _figures(job), outputs, baselines)
    write_markdown(card, layout.workdir)
    files.write_json(layout.card, card)
    shutil.rmtree(layout.work)
    return card


def _whole_report(job: Job) -> Report:
    whole = job.new_report()
    for segment in range(job.segment + 1):
        place = job.layout.segment(segment)
        for name in place.done():
            whole += Report.from_json(files.read_json(place.report(name))["report"])
    return whole


def _refuse_nothing(report: Report, layout: Layout) -> None:
    if any(output == TRAIN for output, *_ in report.written):
        return
    removed: dict[str, int] = {}
    for step, flows in report.flows.items():
        for flow in flows.values():
            for rule, amount in flow.dropped.items():
                name = f"{step}: {rule}"
                removed[name] = removed.get(name, 0) + amount.documents
    read = sum(amount.documents for amount in report.read.values())
    worst = sorted(removed.items(), key=lambda entry: -entry[1])[:3]
    why = ", ".join(f"{name} {count:,}" for name, count in worst) or "the input holds none"
    shutil.rmtree(layout.work)
    raise ValueError(
        f"no document is left to train on, of {read:,} that were read ({why}); loosen those rules, "
        "or give other input"
    )


def _figures(job: Job) -> dict[str, Any]:
    """What global steps said of their decisions."""
    decided = [
        files.read_json(job.layout.segment(segment).decided)
        for segment in range(1, job.segment + 1)
    ]
    return {each["step"]: each["figures"] for each in decided}


def _amount(report: Report, output: str) -> dict[str, int]:
    """Documents and bytes of text in an output."""
    amounts = [amount for (name, *_), amount in report.written.items() if name == output]
    return dataclasses.asdict(sum(amounts, start=Amount()))


def _write_shards(job: Job, output: str, executor: Executor) -> Iterator[tuple[str, str]]:
    """(name, SHA-256) of each file of an output, written where it is not there yet."""
    place = job.layout.segment(job.segment)
    sizes = []
    for name in place.done():
        num_bytes = files.read_json(place.report(name))["output_bytes"].get(output)
        if num_bytes is not None:
            sizes.append((place.output(name, output), num_bytes))
    tasks = [
        ShardTask(tuple(parts), job.layout.shard(output, index))
        for index, parts in enumerate(_together(sizes))
    ]
    for task, sha256 in zip(tasks, executor.map(_write_shard, tasks), strict=True):
        yield task.target.name, sha256


def _together(sizes: Sequence[tuple[pathlib.Path, int]]) -> Iterator[list[pathlib.Path]]:
    held: list[pathlib.Path] = []
    num_held = 0
    for path, num_bytes in sizes:
        if num_held >= _SHARD_BYTES:
            yield held
            held, num_held = [], 0
        held.append(path)
        num_held += num_bytes
    if held:
        yield held


def _write_shard(task: ShardTask) -> str:
    """Writes a file of the result where it is not there yet; returns its SHA-256."""
    if not task.target.exists():
        merge_chunks(task.parts, task.target)
    for part in task.parts:
        part.unlink(missing_ok=True)
    return files.sha256(task.target)


def _keep_fates(job: Job) -> None:
    """Moves what became of every document to its place, a file for each chunk."""
    place = job.layout.segment(job.segment)
    for index, name in enumerate(place.done()):
        target = job.layout.fates(index)
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            place.fates(name).replace(target)


def _heldout(layout: Layout) -> Iterator[str]:
    for path in sorted((layout.workdir / HELDOUT).glob("*.parquet")):
        for document in read_chunk(path):
            yield document.text
