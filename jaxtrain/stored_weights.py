"""The parameters of a stored model, read one by one onto devices.

    OfHub          of a Hugging Face directory
    OfCheckpoint   of a run's checkpoint
    Body           of one of these, a language model, all but its head: for a model that scores
    Merged         of a LoRA run's checkpoint: its base's, the updates added

A checkpoint of a LoRA run holds the updates only, and a record of what they belong to: where the
base was, and a fingerprint of each of its parameters. Every use reads the base again and refuses
another one.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jaxtrain.hub import companions
from jaxtrain.hub.directory import is_model
from jaxtrain.hub.load import abstract_model, open_params
from jaxtrain.hub.model import HubModel
from jaxtrain.lora import adapters
from jaxtrain.lora.config import LoraConfig
from jaxtrain.lora.fingerprint import fingerprint
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.parameters import Tree, flatten, nest
from jaxtrain.run_config import RunConfig, of_any_stage
from jaxtrain.train.checkpoint import check_structure, restore, restore_matching
from jaxtrain.train.checkpoint_read import read_record, whole_steps
from jaxtrain.workdir import CHECKPOINTS

_PARAMS, _NONTRAINED = "params.", "nontrained."
Read = Callable[[str], jax.Array]  # dotted path -> the parameter, as `open` was told


class StoredWeights(Protocol):
    """A stored model's parameters."""

    @property
    def where(self) -> str:
        """How `named` finds it again, from any directory."""
        ...

    @property
    def name(self) -> str:
        """What it is called where it does not matter where it lies."""
        ...

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        ...

    def open(self, abstract: Tree, axes: Tree) -> Read:
        """A function that reads the parameter at a dotted path; nothing is read yet.

        Args:
          abstract: `jax.ShapeDtypeStruct`s with shardings; a format other than float32 is cast to.
          axes: their dimension letters.

        Raises:
          ValueError: naming whatever does not fit.
        """
        ...


class OfHub(NamedTuple):
    """Of a Hugging Face model."""

    model: HubModel

    @property
    def where(self) -> str:
        """Its directory."""
        return str(self.model.directory.absolute())

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.model.directory.resolve().name

    @property
    def config(self) -> ModelConfig:
        """Of its config.json."""
        return self.model.config

    def open(self, abstract: Tree, axes: Tree) -> Read:
        """See `StoredWeights`."""
        return open_params(self.model, abstract, axes)


class OfCheckpoint(NamedTuple):
    """Of a run that trained the whole model."""

    directory: pathlib.Path  # of checkpoints
    step: int

    @property
    def where(self) -> str:
        """WORKDIR@STEP."""
        return f"{self.directory.parent.absolute()}@{self.step}"

    @property
    def name(self) -> str:
        """Of the imported model, or of the workdir."""
        return _name(self.directory, self.step)

    @property
    def config(self) -> ModelConfig:
        """Of the run."""
        return _config(self.directory, self.step).model

    def open(self, abstract: Tree, axes: Tree) -> Read:
        """See `StoredWeights`."""
        wanted = flatten(abstract)
        stored = {path: _as(leaf, jnp.float32) for path, leaf in wanted.items()}
        leaves = read_record(self.directory, self.step).leaves
        where = {path: leaf_path(leaves, path) for path in stored}
        for path, leaf in where.items():
            if leaf != _PARAMS + path:
                check_structure(self.directory, self.step, nest({leaf: stored[path]}), leaf)
        params = {path: stored[path] for path in stored if where[path] == _PARAMS + path}
        check_structure(self.directory, self.step, {"params": nest(params)}, _PARAMS)

        def read(path: str) -> jax.Array:
            one = nest({where[path]: stored[path]})
            (leaf,) = jax.tree.leaves(restore_matching(self.directory, self.step, one)[0])
            return _cast(leaf, wanted[path].dtype)

        return read


class Body(NamedTuple):
    """Of a language model, for one that scores: what both have."""

    language_model: StoredWeights
    scorer: ModelConfig

    @property
    def where(self) -> str:
        """Of the language model."""
        return self.language_model.where

    @property
    def name(self) -> str:
        """Of the language model."""
        return self.language_model.name

    @property
    def config(self) -> ModelConfig:
        """The language model's, padded as the scorer is."""
        num_further = self.language_model.config.num_mtp_layers
        return dataclasses.replace(self.scorer, scalar_head=False, num_mtp_layers=num_further)

    def open(self, abstract: Tree, axes: Tree) -> Read:
        """See `StoredWeights`; `abstract` has no head."""
        whole, wanted = abstract_model(self.config), flatten(abstract)
        where = _whole(next(iter(wanted.values())).sharding)
        all_of_it = {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
            for path, leaf in flatten(whole.params).items()
        }
        return self.language_model.open(nest(all_of_it | wanted), whole.axes)


@dataclasses.dataclass(frozen=True)
class Merged:
    """Of a run that trained low-rank updates of a base."""

    directory: pathlib.Path
    step: int
    lora: LoraConfig
    base: StoredWeights
    fingerprints: Mapping[str, str]  # of the base's parameters by dotted path

    @property
    def where(self) -> str:
        """WORKDIR@STEP."""
        return f"{self.directory.parent.absolute()}@{self.step}"

    @property
    def name(self) -> str:
        """Of the imported model, or of the workdir."""
        return _name(self.directory, self.step)

    @property
    def config(self) -> ModelConfig:
        """Of the run."""
        return _config(self.directory, self.step).model

    def open(self, abstract: Tree, axes: Tree) -> Read:
        """See `StoredWeights`."""
        wanted = flatten(abstract)
        base = self.open_base(abstract, axes)
        chosen = {target.path: target for target in adapters.targets(self.lora, axes)}
        updates = flatten(read_updates(self.directory, self.step, self.lora, abstract, axes))

        def read(path: str) -> jax.Array:
            if path in adapters.TRAINED_WHOLE:
                return updates[path]
            leaf, target = base(path), wanted[path]
            if path not in chosen:
                return _cast(leaf, target.dtype)
            a, b = (updates[each] for each in chosen[path].paths)
            return _add(target.sharding)(self.lora.scale, target.dtype, leaf, a, b)

        return read

    def open_base(self, abstract: Tree, axes: Tree) -> Read:
        """Reads the base as it was held in training, each parameter checked."""
        dtypes = adapters.frozen_dtypes(self.lora, axes)
        of_base = flatten(adapters.of_base(abstract))
        held = {path: _as(leaf, dtypes[path]) for path, leaf in of_base.items()}
        return verified(self.base.open(nest(held), axes), self.base.where, self.fingerprints)


def read_updates(
    directory: pathlib.Path, step: int, config: LoraConfig, abstract: Tree, axes: Tree
) -> Tree:
    """What a LoRA run's checkpoint holds, A and B of every target, whole on each device.

    Args:
      abstract, axes: of the model.
    """
    leaves = flatten(abstract)
    assert config.rank is not None, config
    where = _whole(next(iter(leaves.values())).sharding)
    wanted = {
        path: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)
        for target in adapters.targets(config, axes)
        for path, shape in zip(
            target.paths,
            target.updates_shapes(tuple(leaves[target.path].shape), config.rank),
            strict=True,
        )
    }
    wanted |= {
        path: jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=where)
        for path, leaf in leaves.items()
        if path in adapters.TRAINED_WHOLE
    }
    return restore(directory, step, {"params": nest(wanted)}, _PARAMS)["params"]


def leaf_path(leaves: Collection[str], path: str) -> str:
    """Which of a checkpoint's leaves is a weight of the model: what no gradient trains is apart."""
    return _NONTRAINED + path if _NONTRAINED + path in leaves else _PARAMS + path


def load(weights: StoredWeights, abstract: Tree, axes: Tree) -> dict[str, Any]:
    """All parameters, as nested dicts."""
    read = weights.open(abstract, axes)
    return nest({path: read(path) for path in flatten(abstract)})


def of_checkpoint(
    directory: pathlib.Path, step: int, base: str | None = None
) -> OfCheckpoint | Merged:
    """The model of a checkpoint.

    Args:
      directory: of checkpoints.
      base: where the base of a LoRA run is now; by default where it was.

    Raises:
      ValueError: where there is no such step, or the base of a LoRA run is not there.
    """
    metadata = read_record(directory, step).metadata
    config = of_any_stage(metadata["config"])
    if config.lora.rank is None:
        return OfCheckpoint(directory, step)
    record = metadata["base"]
    try:
        found = named(base or record["where"])
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{directory / str(step)} holds low-rank updates only, and the model that they belong "
            f"to cannot be read: {error} Put it back there (a link will do)."
        ) from error
    base_weights = fitting(found, config.model)
    return Merged(directory, step, config.lora, base_weights, record["fingerprints"])


def fitting(weights: StoredWeights, model: ModelConfig) -> StoredWeights:
    """The weights, as a source for a model that may have another head than they.

    Raises:
      ValueError: where they are a reward model's, whose head predicts no tokens, for one that does.
    """
    if weights.config.scalar_head and not model.scalar_head:
        raise ValueError(
            f"{weights.where} is a reward model, which predicts no tokens; start from a language "
            "model, or train it on with python -m jaxtrain.reward"
        )
    if model.scalar_head and not weights.config.scalar_head:
        return Body(weights, model)
    return weights


def named(text: str) -> StoredWeights:
    """WORKDIR@STEP, WORKDIR for its latest step, or the directory of a Hugging Face model.

    Raises:
      ValueError: where it is none of them.
    """
    if is_model(pathlib.Path(text)):
        return OfHub(HubModel(pathlib.Path(text)))
    name, _, number = text.rpartition("@") if "@" in text else (text, "", "")
    directory = pathlib.Path(name) / CHECKPOINTS
    steps = whole_steps(directory)
    if not steps or (number and not number.isdigit()):
        raise ValueError(
            f"{text} is neither the directory of a Hugging Face model nor a WORKDIR or "
            "WORKDIR@STEP with a whole checkpoint."
        )
    return of_checkpoint(directory, int(number) if number else steps[-1])


def verified(read: Read, where: str, fingerprints: Mapping[str, str]) -> Read:
    """Reads parameters that must have these fingerprints: those that a checkpoint was made with."""

    def read_same(path: str) -> jax.Array:
        leaf = read(path)
        found = fingerprint(leaf)
        if found != fingerprints[path]:
            raise ValueError(
                f"{where} is another model than the one that the checkpoint was made with: "
                f"{path} has the fingerprint {found}, not {fingerprints[path]}. Give it back that "
                "model."
            )
        return leaf

    return read_same


def record(weights: StoredWeights, held: Tree) -> dict[str, Any]:
    """What a checkpoint says of a frozen model that it was made with; `held` as it is held."""
    fingerprints = {path: fingerprint(leaf) for path, leaf in flatten(held).items()}
    return {"name": weights.name, "where": weights.where, "fingerprints": fingerprints}


def keep_origin(weights: StoredWeights | None, workdir: pathlib.Path) -> None:
    """Puts what an export gives back of an imported model into a workdir that starts from it.

    Args:
      weights: what the run starts from or goes on with; None: from nothing.
    """
    directory = None
    if isinstance(weights, OfHub):
        directory = weights.model.directory
    elif isinstance(weights, (OfCheckpoint, Merged)):
        directory = weights.directory.parent / companions.HUB
    elif isinstance(weights, Body):
        return keep_origin(weights.language_model, workdir)
    companions.keep_origin(directory, workdir)


def parts_of(read: Read) -> Callable[[str, tuple[slice, ...]], np.ndarray]:
    """(path, where) -> part of a parameter on the host; a few parameters are kept."""

    @functools.lru_cache(maxsize=4)  # as many as one tensor of theirs is made of
    def whole(path: str) -> np.ndarray:
        return np.asarray(read(path))

    return lambda path, where: whole(path)[where]


def _config(directory: pathlib.Path, step: int) -> RunConfig:
    return of_any_stage(read_record(directory, step).metadata["config"])


def _name(directory: pathlib.Path, step: int) -> str:
    imported = read_record(directory, step).metadata.get("imported")
    return imported["name"] if imported else directory.parent.resolve().name


def _as(leaf: jax.ShapeDtypeStruct, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype), sharding=leaf.sharding)


def _cast(leaf: jax.Array, dtype: Any) -> jax.Array:
    return leaf if leaf.dtype == dtype else leaf.astype(dtype)


@functools.cache
def _add(sharding: Sharding) -> Callable[..., jax.Array]:
    """The sum of a weight and its update, with this sharding."""
    return jax.jit(adapters.add, static_argnums=(0, 1), out_shardings=sharding)


def _whole(sharding: Sharding) -> Sharding:
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding
