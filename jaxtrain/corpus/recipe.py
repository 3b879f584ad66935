"""What decides what a corpus holds, as JSON values: settings and content, no path and no time.

Left out is what changes how the work is done and not what comes out: the executor, its workers, the
place of the input. Files that a step reads (word lists, benchmarks, models) count by their content.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jaxtrain
from jaxtrain import files
from jaxtrain.corpus.config import STEP_MODULES, CorpusConfig
from jaxtrain.corpus.inputs import Unit
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
        if name not in config.steps:
            del values[name]  # so that a step that is not used may change
    parts = {part.name: part for unit in units for part in unit.parts}
    made_from = {
        "format": _FORMAT,
        "version": jaxtrain.__version__,
        "config": values,
        "files_named": {name: files.sha256(path) for name, path in _files_named(values)},
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


def _files_named(values: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, path) of every setting that names a file here, also behind `name=`."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _files_named(value, f"{path}.{key}" if path else key)
    elif isinstance(values, (list, tuple)):
        for number, value in enumerate(values):
            yield from _files_named(value, f"{path}[{number}]")
    elif isinstance(values, str):
        for candidate in (values, values.partition("=")[2]):
            if candidate and os.path.isfile(candidate):
                yield path, candidate
