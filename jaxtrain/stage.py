"""What every training launcher does around its loss and its batch source.

    devices → data checks → program → workdir checks → state (new, branched or resumed) → loop

Every check that can fail for a reason the user can mend comes before the workdir is touched and
before anything compiles.
"""

import contextlib
import importlib.metadata
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from clu import parameter_overview
from flax import nnx
from jax.sharding import Mesh

from jaxtrain import __version__, starting_point, startup
from jaxtrain import config as config_lib
from jaxtrain import workdir as workdir_lib
from jaxtrain.data import sources
from jaxtrain.data.loader import Loader
from jaxtrain.models.decoder import Decoder, attention_choice
from jaxtrain.models.flops import num_params, train_flops_per_token
from jaxtrain.optim import groups
from jaxtrain.optim.build import build as build_optimizer
from jaxtrain.parallel import processes
from jaxtrain.parallel.mesh import describe, make_mesh
from jaxtrain.parallel.sharding import Constrain
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.run_config import RunConfig, split_changes
from jaxtrain.train.checkpoint import Checkpoints
from jaxtrain.train.loop import HeldOut, Loop, StoppedBySignal
from jaxtrain.train.peak import peak_flops
from jaxtrain.train.program import Program
from jaxtrain.train.writers import JsonLinesWriter, MultiWriter, TensorBoardWriter, Terminal
from jaxtrain.types import Array, Loss

MFU_FORMULA = (
    "MFU = tokens/s × model FLOPs per token / peak; model FLOPs = 6 × matmul weights (head "
    "counted, embedding look-up not) + 12 × L × N × H × T × (½ if causal); recomputation not "
    "counted"
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
) -> Callable[[Array], Decoder]:
    """A function of a key that makes the config's model; `platform` as in `make_program`."""
    recipe = get_recipe(config.precision.recipe)
    return lambda rng: Decoder(
        config.model,
        rngs=nnx.Rngs(rng),
        recipe=recipe,
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


def make_program(
    config: RunConfig,
    loss: Loss,
    mesh: Mesh,
    start_count: int = 0,
    platform: str | None = None,
) -> Program:
    """The program of a config on a mesh; nothing is allocated.

    Args:
      start_count: updates at the checkpoint that the run branched from.
      platform: what the mesh's devices are ("cpu", "gpu"), where that is not this process's
        default backend: compiling ahead of time.

    Raises:
      ValueError: where the mesh does not divide a parameter or the batch, or the schedule does not
        fit the run.
    """
    choose_attention(config, platform)  # before anything is traced
    tokens_per_step = config.data.positions_per_step()

    def make_optimizer(axes: Any):
        try:
            return build_optimizer(
                config.optim, config.loop.num_steps, axes, tokens_per_step, start_count
            )
        except ValueError as error:
            raise ValueError(f"config.optim.{error}") from error

    program = Program(
        make_model=model_maker(config, Constrain(mesh), platform),
        loss=loss,
        make_optimizer=make_optimizer,
        mesh=mesh,
        sharding=config.mesh.sharding,
        num_microbatches=config.loop.num_microbatches,
        seed=config.loop.seed,
    )
    program.check()
    return program


def train(
    config: RunConfig,
    workdir: pathlib.Path,
    loss: Loss,
    source: Loader,
    heldout: Mapping[str, HeldOut],
) -> None:
    """Trains to `loop.num_steps`, resuming where the workdir has checkpoints."""
    mesh, report = start_devices(config)
    plain = config_lib.to_plain(config)
    notes = workdir_lib.check(workdir, plain, split_changes)
    start = starting_point.find(config, workdir / workdir_lib.CHECKPOINTS, source)
    program = make_program(config, loss, mesh, start.num_branched_updates)
    for _, size in config.data.schedule.stages:
        program.local_rows(size)
    start.check(program.abstract_state)

    dtype = get_recipe(config.precision.recipe).compute_dtype
    peak, peak_source = peak_flops(mesh, dtype)
    report |= describe_run(config, program, source, start.note, f"{peak:.3g} FLOP/s, {peak_source}")
    companions = _companions(source)
    with contextlib.ExitStack() as stack:
        if processes.is_primary():
            stack.enter_context(workdir_lib.hold(workdir))
            workdir_lib.claim(workdir, plain, report, companions)
            say_at_start(program, report, notes)
        processes.barrier("workdir")
        state = start.load(program)
        checkpoints = stack.enter_context(
            Checkpoints(workdir / workdir_lib.CHECKPOINTS, config.checkpoint)
        )
        writer, terminal = stack.enter_context(_writers(workdir, config, int(state.step)))
        metadata = {
            "config": plain,
            "config_hash": workdir_lib.config_hash(plain),
            "data": source.metadata(),
            "num_branched_updates": start.num_branched_updates,
            "versions": versions(),
        }
        loop = Loop(
            program,
            config.loop,
            source,
            heldout,
            checkpoints,
            config.checkpoint.save_every,
            writer,
            terminal,
            metadata,
            train_flops_per_token(config.model, config.data.seq_len),
            peak,
            baselines=_baselines(companions),
        )
        try:
            loop.run(state)
        except StoppedBySignal as stopped:
            terminal.say(f"{stopped}; start again with the same workdir to go on")
            sys.exit(128 + stopped.number)


def open_source(config: RunConfig) -> Loader:
    """The training batches of a config.

    Raises:
      ValueError: where a store is missing, damaged or does not fit the model's vocabulary.
    """
    sources.check(config.data, config.model.vocab_size)
    source = Loader(config.data, seed=config.loop.seed)
    source.check_num_steps(config.loop.num_steps)
    return source


def describe_run(
    config: RunConfig, program: Program, source: Loader, start: str, peak: str
) -> dict[str, str]:
    """The lines of the start-up report that depend on the config."""
    name, reason = choose_attention(config)
    return {
        "model": f"{num_params(config.model):,} parameters, {config.precision.recipe}",
        "attention": f"{name}: {reason}",
        "sharding": f"{config.mesh.sharding}, {config.loop.num_microbatches} microbatch(es)",
        "optimizer": program.optimizer.summary,
        "weight decay": groups.describe(
            program.abstract_state.params, program.axes, config.optim.weight_decay_groups
        ),
        "data": str(source.report(config.loop.num_steps)),
        "start": start,
        "mfu": MFU_FORMULA,
        "peak": peak,
        **{f"version of {name}": version for name, version in versions().items()},
    }


def say_at_start(program: Program, report: Mapping[str, str], notes: list[str]) -> None:
    """Prints the start-up report."""
    overview = parameter_overview.get_parameter_overview(
        program.abstract_state.params, include_stats=False
    )
    print(overview)
    for name, text in report.items():
        print(f"{name}: {text}")
    for note in notes:
        print(f"changed since this workdir was last used: {note}")
    sys.stdout.flush()


def _companions(source: Loader) -> dict[str, bytes]:
    """What travels with the data and belongs beside the checkpoints."""
    store = source.sources[0].store  # all stores of a run have the same tokenizer
    found = {name: store.companion(name) for name in (workdir_lib.TOKENIZER, workdir_lib.CARD)}
    return {name: content for name, content in found.items() if content is not None}


def _baselines(companions: Mapping[str, bytes]) -> dict[str, float]:
    """What compressors reach on the corpus's held-out text, where its card says so."""
    card = json.loads(companions.get(workdir_lib.CARD, b"{}"))
    return card.get("heldout_bits_per_byte", {})


def versions() -> dict[str, str]:
    """Versions that decide what a run computes."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain")
    return {"jaxtrain": __version__, **{name: importlib.metadata.version(name) for name in names}}


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
