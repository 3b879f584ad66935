"""The index of a corpus, against which later data is deduplicated.

    index.json     the settings that its keys were made with; written last
    00000.npz      what was observed of the documents that were kept, texts included

Keys made with other settings mean nothing to each other, so an index of other settings is refused.
A workdir of an earlier run, which holds texts and no keys, serves for any settings.
"""

import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain import files
from jaxtrain.corpus.chunks import read_chunk
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.layout import CARD
from jaxtrain.corpus.step import Executor, load_observed

SETTINGS = "index.json"
_OUTPUTS = ("train", "heldout")
_CHUNK_BYTES = 32_000_000  # of text in memory at a time
_STRINGS = {"ids": "id_ends", "text": "text_ends"}

Observe = Callable[[Sequence[Document]], Mapping[str, np.ndarray]]


def check_index(folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
    """Refuses a folder that is no reference, or one whose keys were made with other settings."""
    if (folder / SETTINGS).exists():
        made_with = files.read_json(folder / SETTINGS)
        other = {
            name: (made_with.get(name), settings.get(name))
            for name in made_with.keys() | settings.keys()
            if made_with.get(name) != settings.get(name)
        }
        if other:
            raise ValueError(
                f"reference: {folder} was made with "
                f"{', '.join(f'{name}={value[0]!r}' for name, value in sorted(other.items()))}; "
                "this run has "
                f"{', '.join(f'{name}={value[1]!r}' for name, value in sorted(other.items()))}; "
                "take the same settings, or the workdir of that corpus as reference"
            )
    elif not (folder / CARD).exists():
        raise ValueError(
            f"reference: {folder} has neither {SETTINGS} nor {CARD}; name a folder that save_index "
            "has filled, or the workdir of a finished run"
        )


def observe_reference(
    folder: pathlib.Path, observe: Observe, executor: Executor, spill: pathlib.Path
) -> list[pathlib.Path]:
    """What is known of each chunk of the reference, in files like those of observed chunks."""
    if (folder / SETTINGS).exists():
        return sorted(folder.glob("?????.npz"))
    tasks = [
        _Shard(path, observe, spill / f"{number:05d}")
        for number, path in enumerate(_shards(folder))
    ]
    return [path for paths in executor.map(_observe_shard, tasks) for path in paths]


def write_index(
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    observed: Sequence[pathlib.Path],
    removed: Sequence[Sequence[int]],
    executor: Executor,
) -> None:
    """Leaves an index of the observed documents but the removed rows of each chunk."""
    if (folder / SETTINGS).exists():
        (folder / SETTINGS).unlink()  # from here on it is no index until it is whole
        for old in folder.glob("?????.npz"):
            old.unlink()
    tasks = [
        _Keep(path, rows, folder / f"{number:05d}.npz")
        for number, (path, rows) in enumerate(zip(observed, removed, strict=True))
    ]
    for _ in executor.map(_keep, tasks):
        pass
    files.write_json(folder / SETTINGS, dict(settings))


def _shards(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for output in _OUTPUTS for path in sorted((folder / output).glob("*.parquet"))]


class _Shard(NamedTuple):
    file: pathlib.Path
    observe: Observe
    folder: pathlib.Path


def _observe_shard(task: _Shard) -> list[pathlib.Path]:
    shutil.rmtree(task.folder, ignore_errors=True)
    task.folder.mkdir(parents=True)
    written = []
    for number, chunk in enumerate(_chunks(read_chunk(task.file))):
        written.append(task.folder / f"{number:05d}.npz")
        arrays: dict[str, Any] = dict(task.observe(chunk))
        np.savez(written[-1], **arrays)
    return written


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    chunk, size = [], 0
    for document in documents:
        chunk.append(document)
        size += len(document.text)
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Keep(NamedTuple):
    observed: pathlib.Path
    removed: Sequence[int]
    target: pathlib.Path


def _keep(task: _Keep) -> None:
    arrays: dict[str, Any] = dict(load_observed(task.observed))
    kept = np.ones(len(arrays["num_shingles"]), bool)
    kept[np.asarray(task.removed, np.int64)] = False
    for name, ends_name in _STRINGS.items():
        sizes = np.diff(arrays[ends_name], prepend=0)
        arrays[name] = arrays[name][np.repeat(kept, sizes)]
        arrays[ends_name] = np.cumsum(sizes[kept])
    by_row = {name for name in arrays if name not in {*_STRINGS, *_STRINGS.values()}}
    with files.write_whole(task.target) as file:
        np.savez(file, **{n: a[kept] if n in by_row else a for n, a in arrays.items()})
