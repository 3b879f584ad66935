"""A model whose matrices are frozen and have trained low-rank updates: W + (alpha / rank) · A·B.

Each targeted matrix, whatever its dimensions, gets two arrays whose letters say what they join:

    blocks.attention.w_q_DNH  "LDNH"      ….w_q_DNH.a  "LDR"     ….w_q_DNH.b  "LRNH"
    blocks.attention.w_o_NHD  "LNHD"      ….w_o_NHD.a  "LNHR"    ….w_o_NHD.b  "LRD"
    blocks.ffn.w_up_EDF       "LEDF"      ….w_up_EDF.a "LEDR"    ….w_up_EDF.b "LERF"

so that tables of shardings and groups of optimizers apply to them as to any parameter (both are
matrices). B starts at 0, so the first loss is the base model's. A starts uniform within
±1/√inputs, as in the authors' code and in PEFT, so that learning rates carry over.
"""

import fnmatch
import functools
import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxtrain.lora.config import LoraConfig
from jaxtrain.models.low_rank import LowRank
from jaxtrain.models.parameters import Parametrization, Split, Tree, flatten, nest
from jaxtrain.optim.groups import group_of, layout

#: The name of the frozen model among the frozen trees of a step.
BASE = "base"
#: Parameters that are trained as a whole: what a language model to start from does not have.
TRAINED_WHOLE = ("w_score_D",)
_STREAM = zlib.crc32(b"lora")  # tells the key of the updates from the model's own


class Target(NamedTuple):
    """A matrix that gets an update."""

    path: str
    letters: str

    @property
    def paths(self) -> tuple[str, str]:
        """The dotted paths of A and B."""
        return f"{self.path}.a", f"{self.path}.b"

    @property
    def updates_letters(self) -> tuple[str, str]:
        """Of A: the stacking letters, the input side, R; of B: those, R, the output side."""
        stacked, (inputs, outputs) = layout(self.letters)
        return f"{stacked}{inputs}R", f"{stacked}R{outputs}"

    def updates_shapes(self, shape: tuple[int, ...], rank: int) -> tuple[tuple[int, ...], ...]:
        """Of A and B, from the matrix's own."""
        stacked, (inputs, _) = layout(self.letters)
        start, middle = len(stacked), len(stacked) + len(inputs)
        return (*shape[:middle], rank), (*shape[:start], rank, *shape[middle:])


def adapt(config: LoraConfig, model: Split) -> Parametrization:
    """The model with its updates trained and the rest frozen; nothing is allocated.

    Raises:
      ValueError: where a pattern fits no matrix, listing those there are.
    """
    chosen = targets(config, model.axes)

    def bind(
        params: Tree, nontrained: Tree, frozen: Tree, measured: Tree | None = None
    ) -> nnx.Module:
        leaves, updates = flatten(frozen[BASE]), flatten(params)
        leaves |= {path: updates[path] for path in TRAINED_WHOLE if path in updates}
        for target in chosen:
            a, b = (updates[path] for path in target.paths)
            leaves[target.path] = LowRank(leaves[target.path], a, b, config.scale)
        return model.bind(nest(leaves), nontrained, measured)

    letters = {
        path: each
        for target in chosen
        for path, each in zip(target.paths, target.updates_letters, strict=True)
    }
    letters |= {path: each for path, each in flatten(model.axes).items() if path in TRAINED_WHOLE}
    return Parametrization(
        bind=bind,
        init=functools.partial(_init, config, chosen),
        nontrained=lambda model: model.nontrained,
        axes=nest(letters),
        freeze=lambda params: {BASE: freeze(config, params, model.axes)},
        frozen_axes={BASE: of_base(model.axes)},
    )


def of_base(tree: Tree) -> dict[str, Any]:
    """What of a model's tree belongs to the frozen base."""
    return nest({path: leaf for path, leaf in flatten(tree).items() if path not in TRAINED_WHOLE})


def targets(config: LoraConfig, axes: Tree) -> list[Target]:
    """The matrices that get an update, in the order of the model.

    Raises:
      ValueError: where a pattern fits no matrix, listing those there are.
    """
    matrices = {path: letters for path, letters in flatten(axes).items() if _can_adapt(letters)}
    for pattern in config.targets:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in matrices):
            raise ValueError(
                f"config.lora.targets: {pattern!r} fits none of the model's matrices, which are "
                f"{', '.join(matrices)}."
            )
    return [
        Target(path, letters)
        for path, letters in matrices.items()
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in config.targets)
    ]


def add(scale: float, dtype: DTypeLike, base: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """One merged weight: base + scale · A·B, added up in float32."""
    return LowRank(base, a, b, scale).astype(dtype)


def freeze(config: LoraConfig, params: Tree, axes: Tree) -> dict[str, Any]:
    """A model's parameters in the formats that they are held in."""
    dtypes = frozen_dtypes(config, axes)
    held = {path: leaf.astype(dtypes[path]) for path, leaf in flatten(of_base(params)).items()}
    return nest(held)


def frozen_dtypes(config: LoraConfig, axes: Tree) -> Mapping[str, jnp.dtype]:
    """The format of each frozen parameter by dotted path."""
    return held_dtypes(axes, config.base_dtype)


def held_dtypes(axes: Tree, dtype: DTypeLike) -> Mapping[str, jnp.dtype]:
    """The format of each parameter of a model with matrices in `dtype`: the rest stays float32."""
    float32, held = jnp.dtype(jnp.float32), jnp.dtype(dtype)
    return {
        path: held if group_of(letters) != "vector" and not _is_router(letters) else float32
        for path, letters in flatten(axes).items()
    }


def describe(config: LoraConfig, model: Split, params: Tree) -> str:
    """A line for the log: how much is trained, how much is frozen."""
    num = [
        sum(math.prod(x.shape) for x in jax.tree.leaves(tree)) for tree in (params, model.params)
    ]
    return (
        f"rank {config.rank}, alpha {config.alpha:g} on "
        f"{len(targets(config, model.axes))} arrays of matrices: {num[0]:,} parameters trained "
        f"({num[0] / num[1]:.2%}), {num[1]:,} frozen in {config.base_dtype}"
    )


def _init(config: LoraConfig, chosen: list[Target], params: Tree, rng: jax.Array) -> dict[str, Any]:
    assert config.rank is not None, config
    leaves = flatten(params)
    updates = {path: leaves[path] for path in TRAINED_WHOLE if path in leaves}
    rng = jax.random.fold_in(rng, _STREAM)
    for target in chosen:
        shape_a, shape_b = target.updates_shapes(leaves[target.path].shape, config.rank)
        num_inputs = math.prod(shape_a[len(layout(target.letters).stacked) : -1])
        # By name: what else is targeted does not change it.
        key = jax.random.fold_in(rng, zlib.crc32(target.path.encode()))
        bound = 1 / math.sqrt(num_inputs)
        path_a, path_b = target.paths
        updates[path_a] = jax.random.uniform(key, shape_a, jnp.float32, -bound, bound)
        updates[path_b] = jnp.zeros(shape_b, jnp.float32)
    return nest(updates)


def _can_adapt(letters: str) -> bool:
    return group_of(letters) == "matrix" and not _is_router(letters)


def _is_router(letters: str) -> bool:
    """Scores of experts: float32 under every recipe, and too small to be worth an update."""
    return "E" in layout(letters).sides
