"""From the files of a model straight into sharded parameters.

Tensors are mapped, not read: each device's part of each parameter is copied out of the page cache,
turned to our layout and to float32. It is put into place piece by piece (some layers, some experts
of a layer, or some rows of a matrix), so that the host holds one piece beside what is on devices,
however large a tensor is; where the host is the device, what was copied there is the parameter.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from jaxtrain.hub.model import HubModel, logical_leaves
from jaxtrain.hub.weights import Leaf, Weight, copy
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import Split, Tree, flatten, nest, split
from jaxtrain.precision.recipe import get_recipe

#: Bytes that a piece of a parameter may have on the host.
PIECE_BYTES = 256 * 2**20
_ALIGNMENT = 64  # bytes, of memory that XLA's CPU client takes over instead of copying it

Box = tuple[tuple[int, int], ...]  # from where to where, in each dimension


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
        return _assemble(part, wanted[path], len(weight.indexed))

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
    read: Callable[[tuple[int, ...]], np.ndarray], target: jax.ShapeDtypeStruct, num_indexed: int
) -> jax.Array:
    """A parameter from its parts; `num_indexed` leading dimensions enumerate them."""
    shape, sharding = target.shape, target.sharding
    assert sharding is not None, shape
    holders: dict[Box, list[jax.Device]] = {}  # devices that hold the same are given it at once
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        pairs = zip(index or (), shape, strict=True)
        holders.setdefault(tuple(each.indices(n)[:2] for each, n in pairs), []).append(device)
    fill = functools.partial(_filled, read, num_indexed, target.dtype)
    shards = []
    for box, devices in holders.items():
        pieces = _pieces(read, num_indexed, box, _piece_bytes(sharding) / target.dtype.itemsize)
        shards += _put(fill, box, pieces, target.dtype, devices)
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def _piece_bytes(sharding: Sharding) -> float:
    on_host = next(iter(sharding.device_set)).platform == "cpu"
    return float("inf") if on_host else PIECE_BYTES


def _pieces(
    read: Callable[[tuple[int, ...]], np.ndarray], num_indexed: int, box: Box, most: float
) -> list[Box]:
    """Boxes that make up a box, of at most `most` elements unless a single row has more.

    They are whole in as many dimensions as possible: cut along the dimensions that enumerate parts,
    and within a part along the one in which its file is read from front to back.
    """
    sizes = [stop - start for start, stop in box]
    if math.prod(sizes) <= most:
        return [box]
    view = read(tuple(start for start, _ in box[:num_indexed]))
    axes = [*range(num_indexed), num_indexed + int(np.argmax(view.strides))]
    ranges: list[list[tuple[int, int]]] = [[each] for each in box]
    for axis in axes:
        (start, stop), row = box[axis], math.prod(sizes) // sizes[axis]
        step = max(1, int(most // row))
        ranges[axis] = [(at, min(at + step, stop)) for at in range(start, stop, step)]
        if row <= most:
            break
        sizes[axis] = 1
    return list(itertools.product(*ranges))


def _put(
    fill: Callable[[Box], np.ndarray],
    box: Box,
    pieces: Sequence[Box],
    dtype: np.dtype,
    devices: Sequence[jax.Device],
) -> list[jax.Array]:
    """The shard in `box`, on each of the devices, put together of pieces."""
    if len(pieces) == 1:
        host = fill(box)
        return [jax.device_put(host, device) for device in devices]
    shape = [stop - start for start, stop in box]
    shards = [jnp.zeros(shape, dtype, device=device) for device in devices]
    for piece in pieces:
        host = fill(piece)
        corners = zip(piece, box, strict=True)
        at = np.array([start - first for (start, _), (first, _) in corners], np.int32)
        shards = [
            _update(shard, jax.device_put(host, device), at)
            for shard, device in zip(shards, devices, strict=True)
        ]
        jax.block_until_ready(shards)  # or the host would hold several pieces
    return shards


@functools.partial(jax.jit, donate_argnums=0)
def _update(shard: jax.Array, piece: jax.Array, at: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(shard, piece, list(at))


def _filled(
    read: Callable[[tuple[int, ...]], np.ndarray], num_indexed: int, dtype: np.dtype, box: Box
) -> np.ndarray:
    """A part of a parameter in new memory."""
    out = _aligned([stop - start for start, stop in box], dtype)
    outer, inner = box[:num_indexed], box[num_indexed:]
    for place in itertools.product(*(range(*each) for each in outer)):
        into = out[tuple(p - start for p, (start, _) in zip(place, outer, strict=True))]
        _fill(into, read(place), inner)
    return out


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
