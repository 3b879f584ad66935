"""What decides what a corpus holds, as JSON values: settings and content, no path and no time.

Left out is what changes how the work is done and not what comes out: the executor, its workers, the
place of the input. Files that a step reads (word lists, benchmarks, models) count by their content.
"""

import dataclasses
import glob
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jaxtrain
from jaxtrain import files
from jaxtrain.corpus.config import STEP_MODULES, CorpusConfig
from jaxtrain.corpus.inputs import Unit
from jaxtrain.corpus.layout import CARD
from jaxtrain.corpus.line import own_source

_FORMAT = 2  # raised when the same input and config would give another corpus
_NOT_CONTENT = ("inputs", "executor", "num_workers")


def recipe(
    config: CorpusConfig, units: Sequence[Unit], fingerprints: Mapping[str, str]
) -> dict[str, Any]:
    """The recipe of a config over input of known fingerprints (by name)."""
    values = dataclasses.asdict(config)
    for name in _NOT_CONTENT:
        del values[name]
    for name in STEP_MODULES:
        if name in config.steps:
            values[name] = _by_content(values[name])
        else:
            del values[name]  # so that a step that is not used may change
    parts = {part.name: part for unit in units for part in unit.parts}
    made_from = {
        "format": _FORMAT,
        "version": jaxtrain.__version__,
        "config": values,
        "own_steps": {
            name: hashlib.sha256(own_source(name)).hexdigest()
            for name in config.steps
            if ":" in name
        },
        "inputs": {
            name: {"sha256": each, "source": parts[name].source, "format": parts[name].format}
            for name, each in fingerprints.items()
        },
    }
    return json.loads(json.dumps(made_from))  # tuples to lists, as in a file


def _by_content(value: Any) -> Any:
    """Settings with every path of this machine replaced by a name and what is there.

    A setting `save_…` is a place for output and decides nothing.
    """
    if isinstance(value, Mapping):
        kept = {key: each for key, each in value.items() if not key.startswith("save_")}
        return {key: _by_content(each) for key, each in kept.items()}
    if isinstance(value, (list, tuple)):
        return [_by_content(each) for each in value]
    if not isinstance(value, str):
        return value
    # As it stands, or in the form name=path:fields.
    name, _, behind = value.rpartition("=")
    path, _, fields = behind.partition(":")
    for before, candidate, after in (("", value, ""), (name, behind, ""), (name, path, fields)):
        if found := _found(candidate):
            return {"name": before, "sha256": _content(found), "fields": after}
    return value


def _found(candidate: str) -> list[pathlib.Path]:
    """What a setting names, if it is a path or glob: with a folder or an ending, unlike a word."""
    if not re.search(r"\w/|/\w|\.\w+$", candidate) or "://" in candidate:
        return []
    if os.path.exists(candidate):
        return [pathlib.Path(candidate)]
    return [pathlib.Path(path) for path in sorted(glob.glob(candidate, recursive=True))]


def _content(paths: Sequence[pathlib.Path]) -> str:
    """The SHA-256 of a file, or of the names and content of several, also those in folders."""
    (first, *rest) = paths
    if not rest and first.is_file():
        return files.sha256(first)
    digest = hashlib.sha256()
    for path in paths:
        card = path / CARD  # it holds the hashes of the corpus that lies there
        inside = [card] if card.exists() else sorted(path.rglob("*"))
        for file in [path] if path.is_file() else filter(pathlib.Path.is_file, inside):
            name = file.relative_to(path.parent if path.is_file() else path).as_posix()
            digest.update(f"{name} {files.sha256(file)}\n".encode())
    return digest.hexdigest()
