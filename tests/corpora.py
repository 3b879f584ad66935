"""Small corpora for tests: inputs, configs by dotted path, and what a run left."""

import hashlib
import json
import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtrain import config as config_lib
from jaxtrain import provenance
from jaxtrain.corpus import run
from jaxtrain.corpus.chunks import read_chunk
from jaxtrain.corpus.config import CorpusConfig
from jaxtrain.corpus.documents import Document

_WORDS = ["red", "fox", "runs", "by", "an", "old", "oak", "and", "the", "young", "hare", "hides"]


def texts(num: int, seed: int = 0) -> list[str]:
    """Different texts of 5 to 60 words."""
    rng = random.Random(seed)
    return [f"{i}: {' '.join(rng.choices(_WORDS, k=rng.randint(5, 60)))}." for i in range(num)]


def write_lines(path: pathlib.Path, records: Sequence[Mapping[str, Any]]) -> pathlib.Path:
    """A JSON Lines file of records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def make_config(inputs: Sequence[Any], **values: Any) -> CorpusConfig:
    """A config with values by dotted path, `__` for a dot; one worker unless told otherwise."""
    config = config_lib.to_config_dict(CorpusConfig)
    config.inputs = tuple(str(each) for each in inputs)
    config.num_workers = 1
    for path, value in values.items():
        *sections, key = path.split("__")
        node = config
        for section in sections:
            node = node[section]
        node[key] = value
    return config_lib.resolve(CorpusConfig, config)


def prepare(config: CorpusConfig, workdir: pathlib.Path) -> dict[str, Any]:
    """Runs the stage; returns the card."""
    return run.prepare(config, workdir, provenance.check_same)[0]


def tree(workdir: pathlib.Path) -> dict[str, str]:
    """The hash of every file below a folder, by relative path."""
    return {
        path.relative_to(workdir).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(workdir.rglob("*"))
        if path.is_file()
    }


def documents(workdir: pathlib.Path, *outputs: str) -> list[Document]:
    """The documents of the outputs (all by default), in order."""
    return [
        document
        for output in outputs or ("train", "heldout")
        for path in sorted((workdir / output).glob("*.parquet"))
        for document in read_chunk(path)
    ]
