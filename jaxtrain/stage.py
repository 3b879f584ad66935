"""What every training launcher does around its loss and its batch source.

    devices → checks (workdir, starting point, program) → hold the workdir → the same checks →
    state (new, branched or resumed) → loop

Every check that can fail for a reason the user can mend comes before the workdir is touched and
before anything compiles. They run again once the workdir is held: what they saw may be out of date.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh

from jaxtrain import companions, starting_point, startup, startup_report
from jaxtrain import config as config_lib
from jaxtrain import workdir as workdir_lib
from jaxtrain.companions import Companion
from jaxtrain.data import sources
from jaxtrain.data.heldout import HeldOut
from jaxtrain.data.loader import Loader
from jaxtrain.lora.adapters import adapt
from jaxtrain.models import dispatch, low_precision
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder, attention_choice
from jaxtrain.models.flops import adapted_flops_per_token, train_flops_per_token
from jaxtrain.models.parameters import flatten, whole
from jaxtrain.optim.build import build as build_optimizer
from jaxtrain.parallel import processes
from jaxtrain.parallel.mesh import describe, make_mesh
from jaxtrain.parallel.sharding import Constrain
from jaxtrain.precision.recipe import Recipe, check_devices, get_recipe, training_recipe
from jaxtrain.run_config import RewardRun, RunConfig, split_changes
from jaxtrain.starting_point import StartingPoint
from jaxtrain.stored_weights import keep_origin
from jaxtrain.train.checkpoint import Checkpoints
from jaxtrain.train.frozen import FrozenModel
from jaxtrain.train.loop import Loop, StoppedBySignal
from jaxtrain.train.peak import peak_flops
from jaxtrain.train.program import Program
from jaxtrain.train.writers import JsonLinesWriter, MultiWriter, TensorBoardWriter, Terminal
from jaxtrain.types import Array, Loss

MFU_FORMULA = (
    "MFU = tokens/s × model FLOPs per token / peak; model FLOPs = 6 × matmul weights (4 × frozen "
    "ones, 2 × those of a model beside it; head counted, embedding look-up not) + 12 × L × N × H × "
    "T × (½ if causal, less in a window); recomputation not counted"
)


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


def model_maker(
    config: RunConfig,
    constrain: Callable[[Array, str], Array] = lambda x, _: x,
    platform: str | None = None,
    shape: ModelConfig | None = None,
    recipe: Recipe | None = None,
) -> Callable[[Array], Decoder]:
    """A function of a key that makes the config's model; `platform` as in `make_program`.

    Args:
      shape: of another model that is to run on the same batches.
      recipe: None: as the config's model computes where it is not trained.
    """
    return lambda rng: Decoder(
        shape or config.model,
        rngs=nnx.Rngs(rng),
        recipe=recipe or get_recipe(config.precision.recipe),
        constrain=constrain,
        isolated=config.isolated,
        platform=platform,
    )


def choose_attention(config: RunConfig, platform: str | None = None) -> tuple[str, str]:
    """(implementation, reason) of the attention that will run."""
    recipe, where = get_recipe(config.precision.recipe), platform or jax.default_backend()
    try:
        return attention_choice(config.model, recipe, where, isolated=config.isolated)
    except ValueError as error:
        raise ValueError(f"config.model.{error}") from error


def choose_dispatch(config: RunConfig, platform: str | None = None) -> tuple[str, str]:
    """(way, reason) in which tokens will reach their experts."""
    try:
        return dispatch.choice(config.model, platform or jax.default_backend())
    except ValueError as error:
        raise ValueError(f"config.model.{error}") from error


def make_program(
    config: RunConfig,
    loss: Loss,
    mesh: Mesh,
    start_count: int = 0,
    platform: str | None = None,
    others: Mapping[str, FrozenModel] | None = None,
) -> Program:
    """The program of a config on a mesh; nothing is allocated.

    Args:
      start_count: updates at the checkpoint that the run branched from.
      others: frozen models that the loss sees, by name.
      platform: what the mesh's devices are ("cpu", "gpu"), where that is not this process's
        default backend: compiling ahead of time.

    Raises:
      ValueError: where the mesh does not divide a parameter or the batch, or the schedule does not
        fit the run.
    """
    choose_attention(config, platform)  # before anything is traced
    choose_dispatch(config, platform)
    try:
        check_devices(config.precision, list(mesh.devices.flat))
    except ValueError as error:
        raise ValueError(f"config.precision.{error}") from error
    recipe = training_recipe(config.precision, mesh)
    tokens_per_step = config.data.positions_per_step()

    def make_optimizer(axes: Any):
        try:
            return build_optimizer(
                config.optim, config.loop.num_steps, axes, tokens_per_step, start_count
            )
        except ValueError as error:
            raise ValueError(f"config.optim.{error}") from error

    program = Program(
        make_model=model_maker(config, Constrain(mesh), platform, recipe=recipe),
        loss=loss,
        make_optimizer=make_optimizer,
        mesh=mesh,
        sharding=config.mesh.sharding,
        num_microbatches=config.loop.num_microbatches,
        scales_loss=recipe.scales_loss,
        seed=config.loop.seed,
        parametrize=whole if config.lora.rank is None else functools.partial(adapt, config.lora),
        others=others or {},
    )
    program.check()
    if recipe.quantization is not None:
        try:
            axes = flatten(program.model.axes)
            trained = flatten(program.abstract_state.params)
            adapted = [path.removesuffix(".a") for path in trained if path.endswith(".a")]
            low_precision.check(recipe.quantization, config.model, axes, adapted)
        except ValueError as error:
            raise ValueError(f"config.precision.{error}") from error
    return program


def flops_per_token(config: RunConfig, program: Program) -> float:
    """The model FLOPs of an MFU."""
    length = config.data.seq_len
    others = sum(
        train_flops_per_token(dataclasses.replace(other.config, num_mtp_layers=0), length) / 3
        for other in program.others.values()
    )
    if config.lora.rank is None:
        return train_flops_per_token(config.model, length) + others
    num_trained = sum(leaf.size for leaf in jax.tree.leaves(program.abstract_state.params))
    return adapted_flops_per_token(config.model, length, num_trained) + others


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
            flops_per_token=flops_per_token(config, program),
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
        lambda shape, recipe: model_maker(config, Constrain(mesh), None, shape, get_recipe(recipe)),
    )
    program = make_program(config, loss, mesh, start.num_branched_updates, others=models)
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
        "attention": ": ".join(choose_attention(config)),
        **_experts(config),
        "start": start.note,
        **companions.describe(program.others, start),
        "mfu": MFU_FORMULA,
    }
    saved = {**report, "notes": notes}
    workdir_lib.claim(workdir, config_lib.to_plain(config), saved, _companions(source))
    keep_origin(start.origin, workdir)
    startup_report.say(program.abstract_state.params, report, notes)


def _experts(config: RunConfig) -> dict[str, str]:
    if config.model.num_experts is None:
        return {}
    return {"experts": ": ".join(choose_dispatch(config))}


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
