"""Checkpoints: the whole state and what it was made from, saved in the background as one atom.

A step exists only when it is whole: Orbax writes into a temporary directory and renames it at the
end, and a step is renamed again before it is deleted. A save that fails is raised as an error from
the next call here. The files are described in `checkpoint_read.py`, which reads them without jax;
what a state consists of is `state.py`'s.
"""

import concurrent.futures
import contextlib
import dataclasses
import logging
import math
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from jaxtrain.options import option
from jaxtrain.parallel import processes
from jaxtrain.train.checkpoint_read import (
    DELETING,
    FORMAT,
    RECORD,
    RUN,
    STATE,
    Condition,
    find_entries,
    read_record,
    whole_steps,
    write_sizes,
)
from jaxtrain.train.leaves import (
    Keys,
    abstract_storable,
    describe,
    dotted,
    named_leaves,
    nest,
    pick,
    storable,
)

#: Bytes of a stored chunk at most: what a reader holds in memory, and the grain of resharding.
_CHUNK_BYTES = 16 * 2**20
#: Layers, and experts of a layer, that have as many bytes are stored apart.
_ROW_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When a checkpoint is saved and which ones stay."""

    save_every: int = option(
        1000, "Steps between checkpoints; the last step is saved too.", resumable=True
    )
    keep_last: int = option(3, "Newest checkpoints that stay.", resumable=True)
    keep_every: int | None = option(
        None, "Steps: checkpoints of its multiples stay as well.", resumable=True
    )
    keep_best: int = option(
        1, "Checkpoints with the lowest eval/loss that stay as well.", resumable=True
    )

    def __post_init__(self):
        for name in ("save_every", "keep_last", "keep_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if self.keep_best < 0:
            raise ValueError(f"keep_best={self.keep_best} must be at least 0 (0 keeps none).")
        if self.keep_every and self.keep_every % self.save_every:
            raise ValueError(
                f"keep_every={self.keep_every} must be a multiple of save_every={self.save_every}, "
                "or most of its steps would never be saved."
            )


class CheckpointError(OSError):
    """A checkpoint could not be written; names its step and path."""


class Checkpoints:
    """The checkpoints of one run. Every process of the run makes the same calls.

    One save runs in the background at a time; the next one waits for it. Its failure is raised by
    whichever of `save`, `check`, `newly_saved`, `wait` and `close` comes next, and by each of them
    from then on. Nothing is written, not even the directory, before the first save.
    """

    def __init__(
        self, directory: str | pathlib.Path, config: CheckpointConfig, *, compress: bool = True
    ):
        """Args: compress: False saves in half the time and in somewhat more space."""
        self.directory = pathlib.Path(directory).absolute()
        self._config = config
        self._newest = self.latest()
        self._replaceable = self._damaged_since(self._newest)
        self._writer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(
                **{
                    STATE: ocp.PyTreeCheckpointHandler(
                        use_ocdbt=True, use_zarr3=False, use_compression=compress
                    ),
                    RUN: ocp.JsonCheckpointHandler(filename=RECORD),
                }
            ),
            # Orbax never ends where a directory that it creates in the background is refused.
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
        )
        self._background = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._saving: tuple[int, concurrent.futures.Future[None]] | None = None
        self._newly_saved: list[int] = []
        logging.getLogger("absl").addFilter(_raised_again)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            self.close()
        except CheckpointError as error:
            if kind is None:
                raise
            logging.error("%s", error)  # the first error goes on, this one is not lost

    def steps(self) -> list[int]:
        """The whole ones."""
        return whole_steps(self.directory)

    def latest(self) -> int | None:
        """The newest whole one."""
        return max(self.steps(), default=None)

    def metadata(self, step: int) -> Mapping[str, Any]:
        """What was stored beside the state."""
        return read_record(self.directory, step).metadata

    def save(self, step: int, state: Any, metadata: Mapping[str, Any]) -> None:
        """Starts to save a pytree of arrays; returns when the state may change again.

        Args:
          metadata: JSON values. `config_hash`, `position` (of the data) and `metrics` are shown by
            `jaxtrain.inspect`; `metrics["eval/loss"]` is what `keep_best` goes by.

        Raises:
          CheckpointError: where this save cannot start, or the one before has failed.
        """
        self.wait()
        if self._newest is not None and step <= self._newest:
            raise ValueError(
                f"step {step} cannot be saved after step {self._newest} in {self.directory}; "
                "continue from the newest checkpoint, or in another workdir."
            )
        leaves = named_leaves(state)
        record = {
            "format": FORMAT,
            "metadata": dict(metadata),
            "leaves": {
                dotted(keys): dataclasses.asdict(describe(leaf)) for keys, leaf in leaves.items()
            },
        }
        arrays = {keys: storable(leaf) for keys, leaf in leaves.items()}
        chunks = {keys: _chunks(array) for keys, array in arrays.items()}
        items = {
            STATE: ocp.args.PyTreeSave(nest(arrays), save_args=nest(chunks)),
            RUN: ocp.args.JsonSave(record),
        }
        try:
            if processes.is_primary():
                self._make_way(step)
            self._writer.save(self.directory / str(step), args=ocp.args.Composite(**items))
        except OSError as error:
            raise self._failure(step, error) from error
        self._newest = step
        self._saving = step, self._background.submit(self._finish, step)

    def check(self) -> None:
        """Raises the error of a failed save; never waits."""
        if self._saving and self._saving[1].done():
            self.wait()

    def newly_saved(self) -> list[int]:
        """Steps that have become whole since the last call; never waits."""
        self.check()
        steps, self._newly_saved = self._newly_saved, []
        return steps

    def wait(self) -> None:
        """Waits until the save under way is whole."""
        if self._saving:
            step, future = self._saving
            future.result()
            self._saving = None
            self._newly_saved.append(step)

    def close(self) -> None:
        """Waits, then lets go of threads."""
        try:
            self.wait()
        finally:
            self._background.shutdown()
            self._writer.close()

    def restore(self, step: int, abstract_state: Any) -> Any:
        """The state of a step; see the function `restore`."""
        return restore(self.directory, step, abstract_state)

    def _finish(self, step: int) -> None:
        try:
            self._writer.wait_until_finished()
        except Exception as error:
            if processes.is_primary():
                with contextlib.suppress(OSError):
                    self._remove_leftovers()  # a full disk gets its space back
            raise self._failure(step, error) from error
        if processes.is_primary():
            done = f"checkpoint of step {step} is saved, but"
            try:
                write_sizes(self.directory / str(step))
            except OSError as error:
                raise CheckpointError(f"{done} not the list of its files: {error}") from error
            try:
                self._prune()
            except OSError as error:
                raise CheckpointError(
                    f"{done} an older one in {self.directory} could not be deleted: {error}"
                ) from error

    def _prune(self) -> None:
        losses = {
            step: self.metadata(step).get("metrics", {}).get("eval/loss") for step in self.steps()
        }
        for step in steps_to_delete(losses, self._config):
            path = self.directory / str(step)
            # Renamed first: a kill in between leaves no half of a step under a whole one's name.
            shutil.rmtree(path.rename(path.with_name(f"{step}{DELETING}")))

    def _make_way(self, step: int) -> None:
        """Removes what kills left behind, and what this step replaces.

        Raises:
          FileExistsError: where something under the step's name may not be replaced.
        """
        self._remove_leftovers()
        for entry in find_entries(self.directory):
            if entry.step != step:
                continue
            if entry.condition is not Condition.DAMAGED or step not in self._replaceable:
                raise FileExistsError(f"what is there is not replaced ({entry.problem})")
            shutil.rmtree(entry.path)

    def _remove_leftovers(self) -> None:
        for entry in find_entries(self.directory):
            if entry.condition is Condition.LEFTOVER:
                shutil.rmtree(entry.path)

    def _damaged_since(self, newest: int | None) -> set[int]:
        """Damaged steps that training on from `newest`, a whole one, makes again."""
        return {
            entry.step
            for entry in find_entries(self.directory)
            if entry.condition is Condition.DAMAGED and newest is not None and entry.step > newest
        }

    def _failure(self, step: int, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"checkpoint of step {step} was not written to {self.directory / str(step)}: "
            f"{' '.join(str(error).split())}. Earlier checkpoints are intact; make room or give "
            "access, then start again with the same workdir."
        )


def steps_to_delete(losses: Mapping[int, float | None], config: CheckpointConfig) -> list[int]:
    """Which whole checkpoints go, given the eval/loss of each (None where it has none).

    The newest always stays. Of equally good ones the newer counts as better; a loss that is not
    finite is none.
    """
    steps = sorted(losses)
    keep = set(steps[-config.keep_last :])
    if config.keep_every:
        keep |= {step for step in steps if step % config.keep_every == 0}
    scored = [(loss, -step) for step, loss in losses.items() if _is_finite(loss)]
    keep |= {-step for _, step in sorted(scored)[: config.keep_best]}
    return [step for step in steps if step not in keep]


def check_structure(
    directory: pathlib.Path, step: int, abstract_state: Any, below: str = ""
) -> None:
    """Compares a checkpoint with the state that it should be restored as; reads no array.

    Args:
      below: only leaves whose path begins so are wanted of the checkpoint ("params.").

    Raises:
      ValueError: with the path of every leaf that is missing, unexpected or of another shape or
        dtype; or where the step is not there.
    """
    differences = _differences(directory, step, named_leaves(abstract_state), below)
    if differences:
        raise ValueError(
            f"checkpoint {directory / str(step)} does not fit this state: "
            f"{'; '.join(differences.values())}. Use the config that it was saved with."
        )


def restore(directory: pathlib.Path, step: int, abstract_state: Any, below: str = "") -> Any:
    """The state of a step, on any mesh and any number of processes.

    Args:
      abstract_state: the state's pytree with a `jax.ShapeDtypeStruct` (or array) that has a
        sharding in place of each leaf.
      below: as for `check_structure`; `{"params": …}` with "params." restores parameters alone.

    Raises:
      ValueError: as `check_structure`.
    """
    check_structure(directory, step, abstract_state, below)
    return restore_matching(directory, step, abstract_state)[0]


def restore_matching(directory: pathlib.Path, step: int, state: Any) -> tuple[Any, list[str]]:
    """What a checkpoint and a state have in common; and what was skipped, one line a leaf.

    Args:
      state: as for `restore`; a leaf that the checkpoint does not have in this shape and dtype
        comes back as it was given.

    Returns:
      The state, and a line for each leaf that was not loaded or not wanted, with its path.
    """
    leaves = named_leaves(state)
    skipped = _differences(directory, step, leaves)
    loaded = _load(directory, step, {k: v for k, v in leaves.items() if dotted(k) not in skipped})
    values = [loaded.get(keys, leaf) for keys, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(state), values), list(skipped.values())


def _load(directory: pathlib.Path, step: int, leaves: Mapping[Keys, Any]) -> dict[Keys, Any]:
    if jax.process_count() > 1:
        multihost_utils.assert_equal(
            np.int64(step), f"processes restore different steps of {directory}"
        )
    if not leaves:
        return {}
    saved = read_record(directory, step).leaves
    targets = {keys: abstract_storable(dotted(keys), leaf) for keys, leaf in leaves.items()}
    how = {
        keys: ocp.ArrayRestoreArgs(sharding=each.sharding, global_shape=each.shape)
        for keys, each in targets.items()
    }
    path = pathlib.Path(directory).absolute() / str(step)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        try:
            arrays = reader.restore(
                path / STATE,
                args=ocp.args.PyTreeRestore(nest(targets), nest(how), partial_restore=True),
            )
        except Exception as error:  # Orbax and tensorstore raise what they like
            raise ValueError(
                f"checkpoint {path} cannot be read: {str(error).splitlines()[0][:300]}. Move it "
                "away to start from the one before."
            ) from error
    values = {keys: pick(arrays, keys) for keys in targets}
    impls = {keys: saved[dotted(keys)].key_impl for keys in targets}
    return {
        keys: jax.random.wrap_key_data(value, impl=impls[keys]) if impls[keys] else value
        for keys, value in values.items()
    }


def _differences(
    directory: pathlib.Path, step: int, leaves: Mapping[Keys, Any], below: str = ""
) -> dict[str, str]:
    """A line by path for every leaf that checkpoint and state do not have alike."""
    record = read_record(directory, step)
    saved = {path: leaf for path, leaf in record.leaves.items() if path.startswith(below)}
    wanted = {dotted(keys): describe(leaf) for keys, leaf in leaves.items()}
    lines = {}
    for path in sorted(saved.keys() | wanted.keys()):
        if path not in saved:
            lines[path] = f"{path} is missing in the checkpoint"
        elif path not in wanted:
            lines[path] = f"{path} is in the checkpoint only"
        elif str(saved[path]) != str(wanted[path]):
            lines[path] = f"{path} is {saved[path]} in the checkpoint, {wanted[path]} here"
    return lines


def _chunks(array: jax.Array | np.ndarray) -> ocp.SaveArgs:
    """How a leaf is cut into chunks: stacked matrices apart, so that who reads one reads no other.

    Orbax by itself cuts the largest dimensions, and each chunk would have all layers and experts.
    """
    is_global = isinstance(array, jax.Array)
    shape = array.sharding.shard_shape(array.shape) if is_global else array.shape
    apart: tuple[int, ...] = ()
    for axis in range(len(shape) - 2):
        row_bytes = array.dtype.itemsize * math.prod(shape[axis + 1 :])
        if row_bytes < _ROW_BYTES or row_bytes * shape[axis] <= _CHUNK_BYTES:
            break
        apart += (axis,)
    return ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES, shard_axes=apart)


def _is_finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _raised_again(record: logging.LogRecord) -> bool:
    """False for a traceback that Orbax logs of an error which `Checkpoints` raises."""
    return not (record.exc_info and "orbax" in record.pathname)
