"""What every training launcher does around its loss and its batch source.

    devices → checks (workdir, starting point, program) → hold the workdir → the same checks →
    state (new, branched or resumed) → loop

Every check that can fail for a reason the user can mend comes before the workdir is touched and
before anything compiles. They run again once the workdir is held: what they saw may be out of date.
"""

import contextlib
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jax.sharding import Mesh

from jaxtrain import companions, config_program, starting_point, startup, startup_report
from jaxtrain import config as config_lib
from jaxtrain import workdir as workdir_lib
from jaxtrain.companions import Companion
from jaxtrain.data import sources
from jaxtrain.data.heldout import HeldOut
from jaxtrain.data.loader import Loader
from jaxtrain.parallel import processes
from jaxtrain.parallel.mesh import describe, make_mesh
from jaxtrain.parallel.sharding import Constrain
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.run_config import RewardRun, RunConfig, split_changes
from jaxtrain.starting_point import StartingPoint
from jaxtrain.stored_weights import keep_origin
from jaxtrain.train.checkpoint import Checkpoints
from jaxtrain.train.loop import Loop, StoppedBySignal
from jaxtrain.train.peak import peak_flops
from jaxtrain.train.program import Program
from jaxtrain.train.writers import JsonLinesWriter, MultiWriter, TensorBoardWriter, Terminal
from jaxtrain.types import Loss


def start_devices(config: RunConfig) -> tuple[Mesh, dict[str, str]]:
    """Joins other processes, sets CPU devices up and makes the mesh; returns what to report."""
    report = {"allocator": ": ".join(startup.allocator())}
    if not startup.uses_gpu():
        rows = config.data.batch_size // config.loop.num_microbatches
        report["cpu devices"] = processes.set_cpu_devices(config.mesh, rows)
    report["processes"] = processes.initialize()
    try:
        mesh = make_mesh(config.mesh)
    except ValueError as error:
        raise ValueError(f"config.mesh: {error}") from error
    report["mesh"] = describe(mesh)
    return mesh, report


def open_source(config: RunConfig) -> Loader:
    """The training batches of a config.

    Raises:
      ValueError: where a store is missing, damaged or does not fit the model's vocabulary.
    """
    if config.model.scalar_head and not isinstance(config, RewardRun):
        raise ValueError(
            "config.model.scalar_head=True is a reward model, which predicts no tokens; train it "
            "with jaxtrain.reward"
        )
    sources.check(config.data, config.model.vocab_size, may_be_padded=bool(config.init.from_))
    source = Loader(config.data, seed=config.loop.seed)
    source.check_num_steps(config.loop.num_steps)
    return source


class _Plan(NamedTuple):
    """What a start has decided, all checks passed."""

    program: Program
    start: StartingPoint
    notes: list[str]


class Feed(NamedTuple):
    """What a run goes through: its program, the frozen trees, and where batches come from."""

    program: Program
    frozen: Mapping[str, Any]
    source: Loader
    heldout: Mapping[str, HeldOut]


def as_it_is(feed: Feed) -> Feed:
    """Nothing has to be computed ahead."""
    return feed


def train(
    config: RunConfig,
    workdir: pathlib.Path,
    loss: Loss,
    source: Loader,
    heldout: Mapping[str, HeldOut],
    others: Mapping[str, Companion] | None = None,
    prepare: Callable[[Feed], Feed] = as_it_is,
    unit: str = "token",
) -> None:
    """Trains to `loop.num_steps`, resuming where the workdir has checkpoints.

    Args:
      others: frozen models that the loss sees, by name.
      prepare: called once the workdir is held and frozen models are there, before the state is:
        to compute once what the loss needs of them in every epoch.
      unit: what the loss is a mean over, for people.
    """
    mesh, report = start_devices(config)
    plan = functools.partial(_plan, config, workdir, loss, mesh, source, heldout, others or {})
    plan()  # every check, before the workdir is touched
    peak, peak_source = peak_flops(mesh, get_recipe(config.precision.recipe).compute_dtype)
    report["peak"] = f"{peak:.3g} FLOP/s, {peak_source}"
    with contextlib.ExitStack() as stack:
        if processes.is_primary():
            stack.enter_context(workdir_lib.hold(workdir))
        processes.barrier("held")
        program, start, notes = plan()  # a run that held the workdir may have ended meanwhile
        frozen = start.load_frozen(program)
        recorded = start.record_frozen(frozen)
        if processes.is_primary():
            _claim(config, workdir, source, program, start, report, notes)
        processes.barrier("claimed")
        program, frozen, source, heldout = prepare(Feed(program, frozen, source, heldout))
        state = start.load(program)
        checkpoints = stack.enter_context(
            Checkpoints(workdir / workdir_lib.CHECKPOINTS, config.checkpoint)
        )
        writer, terminal = stack.enter_context(_writers(workdir, config, int(state.step)))
        loop = Loop(
            program=program,
            config=config.loop,
            source=source,
            heldout=heldout,
            checkpoints=checkpoints,
            save_every=config.checkpoint.save_every,
            writer=writer,
            terminal=terminal,
            metadata={
                **_metadata(config, source, heldout, start),
                **recorded,
            },
            flops_per_token=config_program.flops_per_token(config, program),
            peak_flops=peak,
            frozen=frozen,
            owes_scores=_owes_scores(config, start),
            baselines=_baselines(heldout),
            unit=unit,
        )
        try:
            loop.run(state)
        except StoppedBySignal as stopped:
            terminal.say(f"{stopped}; start again with the same workdir to go on")
            sys.exit(128 + stopped.number)


def _plan(
    config: RunConfig,
    workdir: pathlib.Path,
    loss: Loss,
    mesh: Mesh,
    source: Loader,
    heldout: Mapping[str, HeldOut],
    others: Mapping[str, Companion],
) -> _Plan:
    """Looks where the run stands and checks that everything fits; changes nothing."""
    changes = functools.partial(split_changes, type(config))
    notes = workdir_lib.check(workdir, config_lib.to_plain(config), changes)
    start = starting_point.find(
        config,
        workdir / workdir_lib.CHECKPOINTS,
        source.metadata(),
        _fingerprints(heldout),
        companions.wheres(config, others),
    )
    models = companions.frozen_models(
        config,
        others,
        start,
        lambda shape, recipe: config_program.model_maker(
            config, Constrain(mesh), None, shape, get_recipe(recipe)
        ),
    )
    program = config_program.make_program(
        config, loss, mesh, start.num_branched_updates, others=models
    )
    for _, size in config.data.schedule.stages:
        program.local_rows(size)
    start.check(program)
    return _Plan(program, start, [*notes, *start.warnings])


def _claim(
    config: RunConfig,
    workdir: pathlib.Path,
    source: Loader,
    program: Program,
    start: StartingPoint,
    report: Mapping[str, str],
    notes: list[str],
) -> None:
    """Writes and says what this start is."""
    report = {
        **report,
        **startup_report.describe(config, program, source),
        "attention": ": ".join(config_program.choose_attention(config)),
        **_experts(config),
        "start": start.note,
        **companions.describe(program.others, start),
        "mfu": config_program.MFU_FORMULA,
    }
    saved = {**report, "notes": notes}
    workdir_lib.claim(workdir, config_lib.to_plain(config), saved, _companions(source))
    keep_origin(start.origin, workdir)
    startup_report.say(program.abstract_state.params, report, notes)


def _experts(config: RunConfig) -> dict[str, str]:
    if config.model.num_experts is None:
        return {}
    return {"experts": ": ".join(config_program.choose_dispatch(config))}


def _metadata(
    config: RunConfig, source: Loader, heldout: Mapping[str, HeldOut], start: StartingPoint
) -> dict[str, Any]:
    """What every checkpoint records beside the state; the loop adds position and scores."""
    plain = config_lib.to_plain(config)
    return {
        "config": plain,
        "config_hash": workdir_lib.config_hash(plain),
        "data": source.metadata(),
        "heldout": _fingerprints(heldout),
        "num_branched_updates": start.num_branched_updates,
        "versions": startup_report.versions(),
    }


def _owes_scores(config: RunConfig, start: StartingPoint) -> bool:
    """Whether a stop fell on a step that was due for an evaluation and left it out."""
    every, is_last = config.loop.eval_every, start.step == config.loop.num_steps
    is_due = is_last or (every is not None and start.step > 0 and start.step % every == 0)
    return is_due and not start.has_scores


def _fingerprints(heldout: Mapping[str, HeldOut]) -> dict[str, str]:
    return {name: each.fingerprint for name, each in heldout.items()}


def _companions(source: Loader) -> dict[str, bytes]:
    """What travels with the data and belongs beside the checkpoints."""
    store = source.sources[0].store  # all stores of a run have the same tokenizer
    found = {name: store.companion(name) for name in workdir_lib.TOKENIZER_FILES}
    found[workdir_lib.CARD] = _cards(source)
    templates = [each.store.companion(workdir_lib.TEMPLATE_FILE) for each in source.sources]
    found[workdir_lib.TEMPLATE_FILE] = next(filter(None, templates), None)  # not of plain text
    return {name: content for name, content in found.items() if content is not None}


def _cards(source: Loader) -> bytes | None:
    """The data card of the only source, or those of several by their names."""
    contents = {each.name: each.store.companion(workdir_lib.CARD) for each in source.sources}
    if len(contents) == 1:
        return next(iter(contents.values()))
    cards = {name: json.loads(content) for name, content in contents.items() if content}
    return json.dumps({"sources": cards}, indent=2, ensure_ascii=False).encode() if cards else None


def _baselines(heldout: Mapping[str, HeldOut]) -> dict[str, float]:
    """What compressors reach on the held-out text; nothing beside a mean over several sets."""
    return next(iter(heldout.values())).compressor_rates() if len(heldout) == 1 else {}


@contextlib.contextmanager
def _writers(
    workdir: pathlib.Path, config: RunConfig, step: int
) -> Iterator[tuple[MultiWriter, Terminal]]:
    """Metrics are written by the primary process only."""
    if not processes.is_primary():
        yield MultiWriter([]), Terminal(config.loop.num_steps, step, silent=True)
        return
    writer = MultiWriter(
        [
            JsonLinesWriter(workdir / workdir_lib.METRICS, step),
            TensorBoardWriter(workdir / workdir_lib.TENSORBOARD, step),
        ]
    )
    terminal = Terminal(config.loop.num_steps, step)
    try:
        yield writer, terminal
    finally:
        terminal.close()
        writer.close()
