"""Where a run's first state comes from: its own checkpoint, another run's, or initialisation.

own        the workdir has whole checkpoints: everything continues exactly
branch     config.init.from, load=state: step, data position, moments and schedule continue in
           a new workdir (the decay of a WSD schedule starts from any stable-phase checkpoint)
weights    config.init.from, load=params: a new run from another's parameters
new        initialisation from config.loop.seed
"""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtrain import config as config_lib
from jaxtrain.data.config import DataConfig
from jaxtrain.data.loader import Loader
from jaxtrain.run_config import RunConfig
from jaxtrain.train.checkpoint import check_structure, restore
from jaxtrain.train.checkpoint_read import read_record, whole_steps
from jaxtrain.train.program import Program
from jaxtrain.train.state import TrainState
from jaxtrain.workdir import CHECKPOINTS


class StartingPoint(NamedTuple):
    """A place to load the state from; `directory` is None for initialisation."""

    note: str
    directory: pathlib.Path | None = None
    step: int = 0
    only_params: bool = False
    num_branched_updates: int = 0  # applied updates at the checkpoint that the run branched from

    def check(self, abstract_state: TrainState) -> None:
        """Raises a ValueError where the checkpoint does not fit, listing every leaf."""
        if self.directory is not None:
            check_structure(self.directory, self.step, *self._wanted(abstract_state))

    def load(self, program: Program) -> TrainState:
        """The state, on the program's mesh."""
        if self.directory is None:
            return program.init()
        loaded = restore(self.directory, self.step, *self._wanted(program.abstract_state))
        return program.init()._replace(params=loaded["params"]) if self.only_params else loaded

    def _wanted(self, abstract_state: TrainState) -> tuple[Any, str]:
        if self.only_params:
            return {"params": abstract_state.params}, "params."
        return abstract_state, ""


def find(config: RunConfig, own: pathlib.Path, source: Loader) -> StartingPoint:
    """Decides where to start; reads metadata only.

    Raises:
      ValueError: where the data before the resumed position is not what the checkpoint was trained
        on, or `init.from` names no whole checkpoint.
    """
    steps = whole_steps(own)
    if steps:
        step = steps[-1]
        metadata = read_record(own, step).metadata
        _check_position(config, step, f"{own.parent}")
        _check_past(config, metadata, step)
        _check_fingerprints(metadata["data"], source.metadata(), step)
        note = f"resumed at step {step} of {own.parent}"
        return StartingPoint(note, own, step, False, metadata["num_branched_updates"])
    if config.init.from_ is None:
        return StartingPoint(f"initialised from seed {config.loop.seed}")
    directory, step = _named(config.init.from_)
    if config.init.load == "params":
        note = f"parameters of {config.init.from_} (step {step}), everything else new"
        return StartingPoint(note, directory, step, only_params=True)
    _check_position(config, step, config.init.from_)
    updates = read_record(directory, step).metadata["updates"]
    return StartingPoint(f"branched from {config.init.from_} (step {step})", directory, step,
                         num_branched_updates=updates)  # fmt: skip


def _named(text: str) -> tuple[pathlib.Path, int]:
    """WORKDIR@STEP, or WORKDIR for its latest."""
    name, _, number = text.partition("@")
    directory = pathlib.Path(name) / CHECKPOINTS
    whole = whole_steps(directory)
    if not whole:
        raise ValueError(f"config.init.from={text!r}: {directory} has no whole checkpoint.")
    if number and not number.isdigit():
        raise ValueError(f"config.init.from={text!r} must be WORKDIR or WORKDIR@STEP.")
    step = int(number) if number else whole[-1]
    if step not in whole:
        steps = ", ".join(map(str, whole))
        raise ValueError(
            f"config.init.from={text!r}: no whole checkpoint there; steps are {steps}."
        )
    return directory, step


def _check_position(config: RunConfig, step: int, where: str) -> None:
    if step > config.loop.num_steps:
        raise ValueError(
            f"config.loop.num_steps={config.loop.num_steps} must be at least {step}, the step of "
            f"the checkpoint in {where}; train longer or start in another workdir."
        )


def _check_past(config: RunConfig, metadata: Mapping[str, Any], step: int) -> None:
    """Schedules of weights and batch sizes may change from the resumed step on, not before."""
    saved = config_lib.resolve(DataConfig, metadata["config"]["data"], "config.data")
    past, now = (config_lib.to_plain(data.until(step)) for data in (saved, config.data))
    changed = list(config_lib.differences(past, now, "config.data"))
    if changed:
        raise ValueError(
            f"the checkpoint of step {step} was trained on other batches: {'; '.join(changed)}. "
            f"A schedule may change from step {step} on; use another workdir otherwise."
        )


def _check_fingerprints(saved: Mapping[str, Any], now: Mapping[str, Any], step: int) -> None:
    for name, store in now.items():
        before, fingerprint = saved[name]["fingerprint"], store["fingerprint"]
        if before != fingerprint:
            raise ValueError(
                f"config.data.sources.{name} holds other data than at the checkpoint of step "
                f"{step} (fingerprint {fingerprint[:12]}, was {before[:12]}); an exact resume is "
                "impossible. Restore the store, or use another workdir."
            )
