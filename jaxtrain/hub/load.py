"""From the files of a model straight into sharded parameters.

Tensors are mapped, not read: each device's part of each parameter is copied out of the page cache,
turned to our layout and to float32. The layers of a stacked parameter are put into place a few at a
time, so that the host holds no more than one such piece beside what is on devices; where the host
is the device, what was copied there is the parameter.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jaxtrain.hub.model import HubModel, logical_leaves
from jaxtrain.hub.weights import Leaf, Weight, copy
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import Split, split
from jaxtrain.precision.recipe import get_recipe

#: Bytes that a piece of a parameter may have on the host; at least one layer is taken.
PIECE_BYTES = 256 * 2**20
_ALIGNMENT = 64  # bytes, of memory that XLA's CPU client takes over instead of copying it

Tree = Mapping[str, Any]


def load_params(model: HubModel, abstract: Tree, axes: Tree) -> dict[str, Any]:
    """The parameters of a model, as a nested dict.

    Args:
      abstract: what they should be, a nested dict of `jax.ShapeDtypeStruct`s with shardings, such
        as `Program.abstract_state.params`.
      axes: their dimension letters, in the same form.

    Raises:
      ValueError: naming every tensor that does not fit; nothing is read then.
    """
    read = open_params(model, abstract, axes)
    return nest({path: read(path) for path in flatten(abstract)})


def open_params(model: HubModel, abstract: Tree, axes: Tree) -> Callable[[str], jax.Array]:
    """As `load_params`, but gives a function that reads the parameter at a dotted path."""
    wanted = flatten(abstract)
    leaves = check_fits(model, abstract, axes)
    places = {
        part.path: (weight, number)
        for weight in model.weights
        for number, part in enumerate(weight.parts)
    }

    def read(path: str) -> jax.Array:
        weight, number = places[path]
        part = functools.partial(_read_part, model, weight, number, leaves)
        return _assemble(part, wanted[path], len(weight.indexed), leaves[path].letters)

    return read


def abstract_model(config: ModelConfig) -> Split:
    """The model of a config without arrays: shapes, letters, and how to bind parameters."""
    recipe = get_recipe("float32")
    return split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), recipe=recipe)))


def check_fits(model: HubModel, abstract: Tree, axes: Tree) -> dict[str, Leaf]:
    """Raises a ValueError where a model's tensors are not these parameters; reads no weight."""
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten(abstract).items()}
    leaves = logical_leaves(flatten(axes), shapes, model.config.vocab_size)
    model.check(leaves)
    return leaves


def flatten(tree: Tree, above: str = "") -> dict[str, Any]:
    """The leaves of nested dicts by dotted path."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inner = flatten(value, f"{above}{key}.") if isinstance(value, Mapping) else None
        flat |= {f"{above}{key}": value} if inner is None else inner
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts from leaves by dotted path."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def _read_part(
    model: HubModel,
    weight: Weight,
    number: int,
    leaves: Mapping[str, Leaf],
    index: tuple[int, ...],
) -> np.ndarray:
    """An array of ours at an index of the letters in the weight's name: a view into a file."""
    tensor = model.tensors.read(weight.tensor_name(index))
    return weight.part_of(tensor, number, leaves)


def _assemble(
    read: Callable[[tuple[int, ...]], np.ndarray],
    target: jax.ShapeDtypeStruct,
    num_indexed: int,
    letters: str,
) -> jax.Array:
    """A parameter from its parts; `num_indexed` leading dimensions enumerate them."""
    assert target.sharding is not None, letters
    shape, sharding = target.shape, target.sharding
    if not num_indexed:
        return _piece(read, 0, shape, 0, target.dtype, sharding)
    num_layers = shape[0]
    layer_bytes = max(1, target.dtype.itemsize * int(np.prod(shape[1:])))
    step = max(1, int(min(_piece_bytes(sharding) / layer_bytes, num_layers)))
    if step >= num_layers:
        return _piece(read, 0, shape, num_indexed, target.dtype, sharding)
    stack = jax.jit(lambda: jnp.zeros(shape, target.dtype), out_shardings=sharding)()
    put = jax.jit(_put, donate_argnums=0, out_shardings=sharding)
    for start in range(0, num_layers, step):
        piece_shape = (min(step, num_layers - start), *shape[1:])
        where = _whole_in_front(sharding)
        piece = _piece(read, start, piece_shape, num_indexed, target.dtype, where)
        stack = put(stack, piece, jnp.int32(start))
        stack.block_until_ready()  # or the host would hold several pieces
    return stack


def _piece_bytes(sharding: Sharding) -> float:
    on_host = next(iter(sharding.device_set)).platform == "cpu"
    return float("inf") if on_host else PIECE_BYTES


def _put(stack: jax.Array, piece: jax.Array, start: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(stack, piece, start, axis=0)


def _whole_in_front(sharding: Sharding) -> Sharding:
    """A sharding that does not split the first dimension, which a piece has only a part of."""
    if not isinstance(sharding, NamedSharding) or not sharding.spec or sharding.spec[0] is None:
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec[1:]))


def _piece(
    read: Callable[[tuple[int, ...]], np.ndarray],
    first: int,
    shape: tuple[int, ...],
    num_indexed: int,
    dtype: np.dtype,
    sharding: Sharding,
) -> jax.Array:
    """Part of a parameter from row `first` of its first dimension on."""

    @functools.cache  # devices that hold the same do not read it again
    def make(ranges: tuple[tuple[int, int], ...]) -> np.ndarray:
        out = _aligned([stop - start for start, stop in ranges], dtype)
        inside = ranges[num_indexed:]
        for place in itertools.product(*(range(*each) for each in ranges[:num_indexed])):
            into = out[tuple(p - start for p, (start, _) in zip(place, ranges, strict=False))]
            at = (place[0] + first, *place[1:]) if place else ()
            _fill(into, read(at), inside)
        return out

    def callback(index: tuple[slice, ...] | None) -> np.ndarray:
        pairs = zip(index or (), shape, strict=True)
        return make(tuple(each.indices(size)[:2] for each, size in pairs))

    return jax.make_array_from_callback(shape, sharding, callback)


def _aligned(shape: list[int], dtype: np.dtype) -> np.ndarray:
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes].view(dtype).reshape(shape)


def _fill(into: np.ndarray, source: np.ndarray, ranges: tuple[tuple[int, int], ...]) -> None:
    """Copies the ranges of `source`; what lies beyond it is padding and becomes 0."""
    pairs = list(zip(ranges, source.shape, strict=True))
    there = tuple(slice(start, min(stop, size)) for (start, stop), size in pairs)
    here = tuple(slice(0, max(0, min(stop, size) - start)) for (start, stop), size in pairs)
    if any(stop > size for (_, stop), size in pairs):
        into[...] = 0
    copy(into[here], source[there])
