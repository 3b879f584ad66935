"""From raw text to a corpus on disk, in passes over chunks that can stop and go on anywhere.

    inputs ─ units ─ segment 0 ─▶ chunks ─ decide ─ segment 1 ─▶ chunks … ─▶ train/, heldout/, card

The card is written last: a workdir with a card holds a whole corpus, and `work/` is gone. Until
then `work/` says what it is made from, and a second start goes on at the first chunk that is
missing. What comes out depends on the config and on the content of the input alone.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxtrain import files
from jaxtrain.corpus import sources, watch
from jaxtrain.corpus.config import CorpusConfig
from jaxtrain.corpus.executors import open_executor
from jaxtrain.corpus.finish import finish, read_card
from jaxtrain.corpus.inputs import Unit
from jaxtrain.corpus.layout import Layout
from jaxtrain.corpus.line import NamedStep, check_fields, cut, named_steps
from jaxtrain.corpus.recipe import recipe
from jaxtrain.corpus.segment import ChunkTask, Job, UnitTask, process_chunk, process_unit
from jaxtrain.corpus.split import HELDOUT, TRAIN
from jaxtrain.corpus.step import Executor
from jaxtrain.progress import show_bytes

CheckSame = Callable[[pathlib.Path, Mapping[str, Any], Mapping[str, Any]], None]


def prepare(
    config: CorpusConfig, workdir: pathlib.Path, check_same: CheckSame
) -> tuple[dict[str, Any], bool]:
    """The card of the corpus in `workdir`, and whether it was made now.

    Args:
      check_same: raises where what the workdir is made from (its second argument) is not what is
        wanted (its third).

    Raises:
      ValueError: for what is wrong with config, input or workdir, before anything is read.
      RuntimeError: where the work fails, naming the unit or chunk. What is done is kept.
    """
    layout = Layout(workdir)
    steps = named_steps(config)
    units = sources.plan(config)
    promised = [(step, step.fields(config, layout.models)) for step in steps]
    sources.check_pages_become_text(units, [fields for _, fields in promised])
    check_fields(promised, sources.fields(units, config.reading))
    with _hold(workdir), open_executor(config.executor, config.num_workers) as executor:
        made_from = recipe(config, units, _fingerprints(units, executor))
        card = read_card(layout)
        if card:
            check_same(workdir, card["made_from"], made_from)
            shutil.rmtree(layout.work, ignore_errors=True)  # where it was killed while doing so
            return card, False
        _begin(layout, made_from, check_same)
        for step in steps:
            if step.learns:
                _learn(step, config, layout, executor)
        line = cut([(step, step.make(config, layout.models)) for step in steps])
        _pass_units(Job(config, line, workdir, 0), units, executor)
        for index in range(1, len(line.segments)):
            job = Job(config, line, workdir, index)
            _decide(job, executor)
            _pass_chunks(job, executor)
        return finish(Job(config, line, workdir, len(line.segments) - 1), made_from, executor), True


@contextlib.contextmanager
def _hold(workdir: pathlib.Path) -> Iterator[None]:
    """Creates the directory and holds it against a second start."""
    workdir.mkdir(parents=True, exist_ok=True)
    if not os.access(workdir, os.W_OK):
        raise ValueError(f"--workdir={workdir} cannot be written to; give another directory")
    descriptor = os.open(workdir, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ValueError(
            f"--workdir={workdir} is in use by another start; wait, or give another directory"
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


def _fingerprints(units: list[Unit], executor: Executor) -> dict[str, str]:
    found = sources.input_files(units)
    hashes = {}
    done = 0
    with show_bytes("hashing the input", sum(file.num_bytes for file in found)) as show:
        for file, sha256 in zip(found, sources.fingerprints(found, executor), strict=True):
            hashes[file.name] = sha256
            done += file.num_bytes
            show(done)
    return hashes


def _begin(layout: Layout, made_from: dict[str, Any], check_same: CheckSame) -> None:
    """Takes the workdir, or finds that its work is this one's."""
    if layout.recipe.exists() and not layout.has_results:
        shutil.rmtree(layout.work)  # it came to nothing: there is nothing to lose or to go on with
    if layout.recipe.exists():
        check_same(layout.workdir, files.read_json(layout.recipe), made_from)
        print(f"going on with what {layout.work} holds", flush=True)
        return
    for name in (TRAIN, HELDOUT):
        if (layout.workdir / name).exists():
            raise ValueError(
                f"{layout.workdir / name} is there, but neither a card nor unfinished work of this "
                "command; give another --workdir, or delete it"
            )
    files.write_json(layout.recipe, made_from)


def _learn(step: NamedStep, config: CorpusConfig, layout: Layout, executor: Executor) -> None:
    folder = layout.models / step.folder
    done = folder.with_suffix(".done")
    if done.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"{step.label}: learning …", flush=True)
    step.fit(config, layout.models, executor)
    files.write_json(done, {})


def _pass_units(job: Job, units: list[Unit], executor: Executor) -> None:
    place = job.layout.segment(0)
    place.folder.mkdir(parents=True, exist_ok=True)
    tasks = [UnitTask(job, index, unit) for index, unit in enumerate(units)]
    # The largest first: so no worker is left with one alone at the end.
    tasks.sort(key=lambda task: -task.unit.num_bytes)
    what = _title(job)
    num_read = num_malformed = 0
    with watch.watch(what, place, watch.of_inputs([unit.num_bytes for unit in units])):
        for count in executor.map(process_unit, tasks):
            num_read += count.items
            num_malformed += count.malformed
            job.config.reading.check_malformed(num_malformed, num_read)
    job.config.reading.check_malformed(num_malformed, num_read, done=True)


def _pass_chunks(job: Job, executor: Executor) -> None:
    before, place = (job.layout.segment(job.segment + step) for step in (-1, 0))
    place.folder.mkdir(parents=True, exist_ok=True)
    names = before.done()
    total = sum(files.read_json(before.report(name))["bytes_left"] for name in names)
    tasks = [ChunkTask(job, index, name) for index, name in enumerate(names)]
    with watch.watch(_title(job), place, watch.of_text(total)):
        for _ in executor.map(process_chunk, tasks):
            pass
    for name in names:
        before.observed(name).unlink(missing_ok=True)
    shutil.rmtree(place.scratch, ignore_errors=True)


def _title(job: Job) -> str:
    segments = job.line.segments
    return f"cleaning (pass {job.segment + 1} of {len(segments)})" if segments[1:] else "cleaning"


def _decide(job: Job, executor: Executor) -> None:
    """The verdicts of the global step that the segment begins with."""
    before, place = (job.layout.segment(job.segment + step) for step in (-1, 0))
    if place.decided.exists():
        return
    named = job.line.segments[job.segment].applies
    assert named is not None, "a later segment begins with a global step"
    shutil.rmtree(place.scratch, ignore_errors=True)
    place.scratch.mkdir(parents=True)
    print(f"{named.label}: deciding …", flush=True)
    step: Any = named.make(job.config, job.layout.models)
    observed = [before.observed(name) for name in before.done()]
    figures = step.decide(observed, executor, place.scratch)
    files.write_json(place.decided, {"step": named.label, "figures": dict(figures)})
