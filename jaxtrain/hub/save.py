"""Parameters to a Hugging Face directory that `transformers` and inference engines load.

The directory appears when everything in it is written, or not at all. Weights are streamed: the
host holds a few matrices of one parameter at a time.
"""

import concurrent.futures
import contextlib
import itertools
import math
import os
import pathlib
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxtrain.files import write_json, write_whole
from jaxtrain.hub.directory import CONFIG, INDEX, SINGLE
from jaxtrain.hub.family import Family
from jaxtrain.hub.safetensors import FLOATS, Planned, write
from jaxtrain.hub.weights import Leaf, Weight
from jaxtrain.models.config import ModelConfig

GENERATION = "generation_config.json"
#: `--dtype` of an export to the format's own name.
DTYPES: Mapping[str, np.dtype] = {
    "float32": FLOATS["F32"],
    "float16": FLOATS["F16"],
    "bfloat16": FLOATS["BF16"],
}
_OWN_DTYPE = FLOATS["F32"]  # of tensors that keep it
_SHARD_BYTES = 5 * 10**9  # as most checkpoints on the hub have them
_READ_BYTES = 32 * 2**20  # or one matrix; memory of this size is used again, not given back

#: read(path, where): part of the parameter at a dotted path; `where` is of its first dimensions.
ReadPart = Callable[[str, tuple[slice, ...]], np.ndarray]


@contextlib.contextmanager
def whole_directory(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A directory to write into that gets its name when the block ends, and goes when it raises.

    Raises:
      ValueError: where something is there already.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"--out={path} is there already; give a directory that is new or empty.")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    part.mkdir()
    try:
        yield part
        os.replace(part, path)
    finally:
        if part.exists():
            shutil.rmtree(part)


def save_model(
    directory: pathlib.Path,
    family: Family,
    config: ModelConfig,
    dtype: str,
    read: ReadPart,
    leaves: Mapping[str, Leaf],
    *,
    token_ids: Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    shard_bytes: int = _SHARD_BYTES,
) -> int:
    """Writes config, weights and other files into a directory; returns the bytes of weights.

    Args:
      dtype: of the weights, a key of DTYPES.
      leaves: of the model without padding; see `model.logical_leaves`.
      token_ids: fields of config.json that are not the model's: `bos_token_id` and the like.
      generation: content of generation_config.json; by default the token ids.
      files: further files by name: tokenizer, chat template, model card.

    Raises:
      ValueError: where the family cannot express the config.
    """
    hf = {**family.write(config), "torch_dtype": dtype, **token_ids}
    table = list(family.weights(config))
    by_name = {weight.name: weight for weight in table}
    for copy, original in family.copies(config).items():
        weight = by_name[original]
        table.append(Weight(copy, weight.layout, *weight.parts))
    num_bytes = _write_weights(directory, table, DTYPES[dtype], read, leaves, shard_bytes)
    write_json(directory / CONFIG, hf)
    if generation is None:
        generation = {name: value for name, value in token_ids.items() if name.endswith("_id")}
    write_json(directory / GENERATION, generation)
    for name, content in (files or {}).items():
        with write_whole(directory / name) as file:
            file.write(content)
    return num_bytes


def _write_weights(
    directory: pathlib.Path,
    table: Sequence[Weight],
    dtype: np.dtype,
    read: ReadPart,
    leaves: Mapping[str, Leaf],
    shard_bytes: int,
) -> int:
    plan = [
        Planned(name, weight.shape(leaves), _OWN_DTYPE if weight.in_float32 else None)
        for weight in table
        for name, _ in weight.tensors(leaves)
    ]
    shards = _shards(plan, dtype, shard_bytes)
    tensors = _ahead(x for weight in table for x in _tensors(weight, dtype, read, leaves))
    total = sum(each.num_bytes(dtype) for each in plan)
    if len(shards) == 1:
        write(directory / SINGLE, plan, dtype, tensors)
        return total
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write(directory / name, shard, dtype, itertools.islice(tensors, len(shard)))
        weight_map |= {each.name: name for each in shard}
    write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return total


def _shards(plan: Sequence[Planned], dtype: np.dtype, shard_bytes: int) -> list[list[Planned]]:
    """The plan in order, cut where a file would grow beyond `shard_bytes`."""
    shards: list[list[Planned]] = [[]]
    room = shard_bytes
    for each in plan:
        size = each.num_bytes(dtype)
        if size > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(each)
        room -= size
    return shards


def _tensors(
    weight: Weight, dtype: np.dtype, read: ReadPart, leaves: Mapping[str, Leaf]
) -> Iterator[np.ndarray]:
    """All tensors of theirs of one entry, in the order of `Weight.tensors`."""
    dtype = _OWN_DTYPE if weight.in_float32 else dtype
    parts = [leaves[part.path] for part in weight.parts]
    paths = [part.path for part in weight.parts]
    if not weight.indexed:
        whole = [
            read(p, tuple(slice(size) for size in leaf.shape))  # without padding
            for p, leaf in zip(paths, parts, strict=True)
        ]
        yield weight.tensor_of(whole, leaves, dtype)
        return
    outer = parts[0].shape[: len(weight.indexed)]
    matrix_bytes = sum(4 * math.prod(leaf.shape[len(outer) :]) for leaf in parts)
    for block in _blocks(outer, max(1, _READ_BYTES // max(1, matrix_bytes))):
        arrays = [read(path, block) for path in paths]
        for place in itertools.product(*(range(each.stop - each.start) for each in block)):
            yield weight.tensor_of([each[place] for each in arrays], leaves, dtype)


def _blocks(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Parts of an array of that shape, in its order, of at most `most` elements."""
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    step = max(1, most // max(1, row))
    for start in range(0, shape[0], step):
        here = slice(start, min(start + step, shape[0]))
        for inner in _blocks(shape[1:], most):
            yield (here, *inner)


def _ahead(tensors: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The same, each made while the one before is written."""
    with concurrent.futures.ThreadPoolExecutor(1, "export") as background:
        following = background.submit(next, tensors, None)
        while (tensor := following.result()) is not None:
            following = background.submit(next, tensors, None)
            yield tensor
