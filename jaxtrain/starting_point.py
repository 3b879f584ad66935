"""Where a run's first state comes from: its own checkpoint, another run's, or initialisation.

own        the workdir has whole checkpoints: everything continues exactly
branch     config.init.from, load=state: step, data position, moments and schedule continue in
           a new workdir (the decay of a WSD schedule starts from any stable-phase checkpoint)
weights    config.init.from, load=params: a new run from another's parameters, or from those of a
           Hugging Face directory
new        initialisation from config.loop.seed

A LoRA run (config.lora.rank) has its parameters, the updates, from one of these, and the frozen
model below them from what config.init.from names, at every start again; so does a stage that needs
another frozen model (a reference policy, a teacher) from what its config names. A checkpoint
records what they were, and another one is refused.

A step that is there but cannot be used is never passed over in silence: see `newest_step`.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtrain import continuity
from jaxtrain.hub.companions import read_tokenizer
from jaxtrain.hub.directory import is_model
from jaxtrain.hub.family import other_function
from jaxtrain.hub.model import HubModel
from jaxtrain.lora.adapters import BASE, TRAINED_WHOLE, of_base
from jaxtrain.models.parameters import flatten, nest
from jaxtrain.parallel import processes
from jaxtrain.run_config import RunConfig
from jaxtrain.stored_weights import (
    Body,
    Merged,
    OfCheckpoint,
    OfHub,
    StoredWeights,
    fitting,
    named,
    of_checkpoint,
    record,
    verified,
)
from jaxtrain.train.checkpoint import check_structure, restore
from jaxtrain.train.checkpoint_read import Condition, find_entries, read_record
from jaxtrain.train.program import Program
from jaxtrain.train.state import TrainState
from jaxtrain.workdir import CHECKPOINTS


class StartingPoint(NamedTuple):
    """A place to load the state from: a checkpoint, a stored model, or neither: initialisation."""

    note: str
    warnings: tuple[str, ...] = ()  # what is not as one may think, said at start
    directory: pathlib.Path | None = None
    step: int = 0
    num_branched_updates: int = 0  # applied updates at the checkpoint that the run branched from
    has_scores: bool = True  # False: a resumed checkpoint that was saved without an evaluation
    weights: StoredWeights | None = None  # what a new run trains, or what a LoRA run has frozen
    others: Mapping[str, StoredWeights] = {}  # what is frozen beside the model, by its tree's name
    #: What the checkpoint recorded of frozen models, by their trees' names.
    recorded: Mapping[str, Mapping[str, Any]] = {}

    def check(self, program: Program) -> None:
        """Raises a ValueError where the weights do not fit, listing every leaf."""
        if self.weights is not None:
            self._open(self.weights, program)
        for tree, weights in self._frozen(program).items():
            weights.open(program.abstract_frozen[tree], program.frozen_axes[tree])
        if self.directory is not None:
            check_structure(self.directory, self.step, program.abstract_state)

    def load(self, program: Program) -> TrainState:
        """The state, on the program's mesh."""
        if self.directory is not None:
            return restore(self.directory, self.step, program.abstract_state)
        state = program.init()
        if self.weights is None or BASE in program.abstract_frozen:
            return state
        read = self._open(self.weights, program)
        own = flatten(state.params) if isinstance(self.weights, Body) else {}
        params = {
            path: own[path] if path in own and path in TRAINED_WHOLE else read(path)
            for path in flatten(program.abstract_state.params)
        }
        nontrained = {
            path: read(path) if path in program.model.settled else leaf
            for path, leaf in flatten(state.nontrained).items()
        }
        return state._replace(params=nest(params), nontrained=nest(nontrained))

    def _open(self, weights: StoredWeights, program: Program):
        """Reads what of the model is stored; a new head is not."""
        model = program.abstract_frozen.get(BASE) or program.abstract_weights
        stored = of_base if isinstance(weights, Body) else lambda tree: tree
        return weights.open(stored(model), stored(program.model.axes))

    def _frozen(self, program: Program) -> dict[str, StoredWeights]:
        """Where each of a program's frozen trees is stored."""
        stored = {**self.others, BASE: self.weights}
        found = {tree: stored[tree] for tree in program.abstract_frozen}
        assert None not in found.values(), (found, self)
        return found

    def load_frozen(self, program: Program) -> dict[str, Any]:
        """The frozen trees by name: none where the model is all there is, and trained as a whole.

        Raises:
          ValueError: where they are not what the checkpoint was trained with.
        """
        trees = {}
        for tree, weights in self._frozen(program).items():
            abstract = program.abstract_frozen[tree]
            read = weights.open(abstract, program.frozen_axes[tree])
            if tree in self.recorded:
                read = verified(read, weights.where, self.recorded[tree]["fingerprints"])
            trees[tree] = nest({path: read(path) for path in flatten(abstract)})
        return trees

    @property
    def origin(self) -> StoredWeights | None:
        """The stored model that the run goes on with, in whatever way; None: it is a new one."""
        if self.weights is None and self.directory is not None:
            return OfCheckpoint(self.directory, self.step)
        return self.weights

    def record_frozen(self, frozen: Mapping[str, Any]) -> dict[str, Any]:
        """What the run's checkpoints say of frozen models, given what `load_frozen` returned."""
        stored = {**self.others, BASE: self.weights}
        records = {tree: record(stored[tree], held) for tree, held in frozen.items()}
        base = {"base": records.pop(BASE)} if BASE in records else {}
        return base | ({"frozen": records} if records else {})


def find(
    config: RunConfig,
    own: pathlib.Path,
    stores: Mapping[str, Any],
    heldout: Mapping[str, str],
    others: Mapping[str, str | None] | None = None,
) -> StartingPoint:
    """Decides where to start; reads metadata only. All processes decide alike.

    Args:
      own: the checkpoints of the run's workdir.
      others: by their trees' names, where the models are that are frozen beside the trained one;
        None: the model that the run starts from.
      stores: what the training stores hold, by name (`Loader.metadata`).
      heldout: fingerprints of the held-out sets, by name.

    Raises:
      ValueError: where the data before the resumed position is not what the checkpoint was trained
        on, `init.from` names no whole checkpoint, or checkpoints are there but cannot be read.
    """
    newest, passed_over = newest_step(own)
    step = _agreed(newest)
    if step is not None:
        start = _resume(config, own, step, stores, heldout)
        passed_over = [f"{line}; a run that comes by its step replaces it" for line in passed_over]
    elif config.init.from_ is None:
        start = StartingPoint(f"initialised from seed {config.loop.seed}")
    elif is_model(pathlib.Path(config.init.from_)):
        start = _from_hub(config, pathlib.Path(config.init.from_), stores)
    else:
        directory, given, passed_over = _named(config.init.from_)
        start = _from_other(config, directory, _agreed(given) or 0, stores)
    start = start._replace(warnings=(*passed_over, *start.warnings))
    return start._replace(others=_others(start, others or {}))


def _others(start: StartingPoint, wanted: Mapping[str, str | None]) -> dict[str, StoredWeights]:
    """Where the models are that are frozen beside the trained one, by their trees' names.

    Raises:
      ValueError: where one of them is not there.
    """
    found = {}
    for tree, where in wanted.items():
        where = where or start.recorded.get(tree, {}).get("where")
        try:
            weights = start.weights if where is None else named(where)
        except (ValueError, OSError) as error:
            raise ValueError(
                f"the {tree} cannot be read: {error} Say where it is with config.{tree}.from."
            ) from error
        assert weights is not None, (tree, start)
        found[tree] = weights
    return found


def newest_step(directory: pathlib.Path) -> tuple[int | None, list[str]]:
    """The newest whole step, and a line for each damaged one after it.

    What a cut-off save or deletion leaves behind does not count: it was never the only copy.

    Raises:
      ValueError: where steps are there but none is whole, or a later one than the newest whole one
        has another format or cannot be accessed; training on would make other steps of that name.
    """
    try:
        entries = find_entries(directory)
    except OSError as error:
        raise ValueError(f"{directory} cannot be read: {error}. Give access to it.") from error
    entries = [entry for entry in entries if entry.condition is not Condition.LEFTOVER]
    whole = [entry.step for entry in entries if entry.condition is Condition.WHOLE]
    newest = whole[-1] if whole else None
    later = [entry for entry in entries if newest is None or entry.step > newest]
    hidden = [entry for entry in later if entry.condition is Condition.UNREADABLE]
    if hidden or (later and newest is None):
        problems = "; ".join(f"{entry.path}: {entry.problem}" for entry in hidden or later)
        raise ValueError(
            f"checkpoints are there but cannot be used, and nothing was touched: {problems}. Mend "
            "access or version, or move them away to start without them."
        )
    return newest, [
        f"checkpoint {entry.path} is damaged ({entry.problem}); the newest whole one, of step "
        f"{newest}, is taken instead"
        for entry in later
    ]


def _resume(
    config: RunConfig,
    own: pathlib.Path,
    step: int,
    stores: Mapping[str, Any],
    heldout: Mapping[str, str],
) -> StartingPoint:
    metadata = read_record(own, step).metadata
    _check_position(config, step, f"{own.parent}")
    batches = continuity.other_batches(metadata, config, step)
    if batches:
        raise ValueError(
            f"the checkpoint of step {step} was trained on other batches: {'; '.join(batches)}. "
            f"A schedule may change from step {step} on; use another workdir otherwise."
        )
    changed = continuity.other_stores(metadata, stores, step)
    if changed:
        raise ValueError(
            f"{'; '.join(changed)}; an exact resume is impossible. Restore the store, or use "
            "another workdir."
        )
    warnings = continuity.rising_rate(metadata, config)
    other = continuity.other_heldout(metadata, heldout)
    if other:
        warnings.append(
            f"held-out data is other than at the checkpoint of step {step} ({', '.join(other)}): "
            "eval/loss before and after, which keep_best compares, are of different sets"
        )
    note = f"resumed at step {step} of {own.parent}"
    if step == config.loop.num_steps:
        note += ", its last: nothing is left to train (config.loop.num_steps makes it longer)"
    return StartingPoint(
        note,
        tuple(warnings),
        own,
        step,
        num_branched_updates=metadata["num_branched_updates"],
        has_scores=bool(metadata.get("metrics")),
        **_frozen(config, own, step),
    )


def _frozen(config: RunConfig, directory: pathlib.Path, step: int) -> dict[str, Any]:
    """`weights` and `recorded` of a state that is continued: `weights` is a LoRA run's base.

    It is where the checkpoint says, unless config.init.from has come to name another place.
    """
    metadata = read_record(directory, step).metadata
    recorded = metadata.get("frozen", {})
    if config.lora.rank is None:
        return {"recorded": recorded}
    is_moved = (
        config.init.load == "params" and config.init.from_ != metadata["config"]["init"]["from"]
    )
    stored = of_checkpoint(directory, step, config.init.from_ if is_moved else None)
    assert isinstance(stored, Merged), stored
    return {"weights": stored.base, "recorded": {**recorded, BASE: metadata["base"]}}


def _from_other(
    config: RunConfig, directory: pathlib.Path, step: int, stores: Mapping[str, Any]
) -> StartingPoint:
    metadata, where = read_record(directory, step).metadata, config.init.from_
    if metadata["data"]:  # a model that was imported without a tokenizer has none
        _check_tokenizers(f"config.init.from={where!r}", metadata, stores)
    if metadata.get("imported") and config.init.load == "state":
        raise ValueError(
            f"config.init.from={where!r} was imported and holds parameters only; set "
            "config.init.load=params."
        )
    if config.init.load == "params":
        note = f"parameters of {where} (step {step}), everything else new"
        weights = fitting(of_checkpoint(directory, step), config.model)
        return StartingPoint(note, step=step, weights=weights)
    other = continuity.other_updates(metadata, config)
    if other:
        raise ValueError(
            f"config.init.from={where!r} cannot be continued with another config.lora: "
            f"{'; '.join(other)}. Set config.init.load=params to start from its parameters."
        )
    _check_position(config, step, f"{where}")
    changed = [
        *continuity.other_batches(metadata, config, step),
        *continuity.other_stores(metadata, stores, step),
    ]
    warnings = [
        f"the data stream is new, and position {step} continues in it: {'; '.join(changed)}"
    ]
    return StartingPoint(
        f"branched from {where} (step {step})",
        tuple(warnings if changed else ()),
        directory,
        step,
        num_branched_updates=metadata["updates"],
        **_frozen(config, directory, step),
    )


def _from_hub(
    config: RunConfig, directory: pathlib.Path, stores: Mapping[str, Any]
) -> StartingPoint:
    """The weights of a Hugging Face model; its function must be that of config.model."""
    where = f"config.init.from={str(directory)!r}"
    if config.init.load != "params":
        raise ValueError(f"{where} is a model and no checkpoint; set config.init.load=params.")
    model = HubModel(directory)
    weights = fitting(OfHub(model), config.model)
    shape = weights.config if isinstance(weights, Body) else config.model
    differences = other_function(shape, model.config)
    if differences:
        raise ValueError(
            f"{where} is another model than config.model, which has {'; '.join(differences)}. Set "
            "config.model to it, or import it (jaxtrain.import_hf) and start from its config.json."
        )
    tokenizer = read_tokenizer(directory)
    if tokenizer is not None:
        metadata = {"data": {"model": {"tokenizer_sha256": tokenizer.sha256}}}
        _check_tokenizers(where, metadata, stores)
    note = f"weights of {directory} ({model.family.model_type})"
    return StartingPoint(note, weights=weights)


def _check_tokenizers(where: str, metadata: Mapping[str, Any], stores: Mapping[str, Any]) -> None:
    differences = continuity.other_tokenizers(metadata, stores)
    if differences:
        raise ValueError(
            f"{where} does not fit the data: {'; '.join(differences)}. Tokenize the text with the "
            "checkpoint's tokenizer."
        )


def _named(text: str) -> tuple[pathlib.Path, int, list[str]]:
    """WORKDIR@STEP, or WORKDIR for its latest; and lines about damaged ones passed over."""
    name, _, number = text.rpartition("@") if "@" in text else (text, "", "")
    directory = pathlib.Path(name) / CHECKPOINTS
    if number and not number.isdigit():
        raise ValueError(f"config.init.from={text!r} must be WORKDIR or WORKDIR@STEP.")
    if not number:
        newest, passed_over = newest_step(directory)
        if newest is None:
            raise ValueError(f"config.init.from={text!r}: {directory} has no whole checkpoint.")
        return directory, newest, passed_over
    try:
        read_record(directory, int(number))
    except (ValueError, OSError) as error:
        raise ValueError(f"config.init.from={text!r}: {error}") from error
    return directory, int(number), []


def _agreed(step: int | None) -> int | None:
    """The primary's step, on every process: a shared file system may show them different ones."""
    number = processes.agreed(-1 if step is None else step)
    return None if number < 0 else number


def _check_position(config: RunConfig, step: int, where: str) -> None:
    if step > config.loop.num_steps:
        raise ValueError(
            f"config.loop.num_steps={config.loop.num_steps} must be at least {step}, the step of "
            f"the checkpoint in {where}; train longer or start in another workdir."
        )
