"""Fine-tuning runs on conversations: their base, their store, their config."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxtrain import chat_store, config_program, row_store
from jaxtrain import config as config_lib
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.run_config import RunConfig
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from tests.chats import base_tokenizer, exchange, write_rows
from tests.runs import ROOT

SFT_RUN = ROOT / "tests" / "sft_run.py"
ROWS = [exchange(f"{number}+1?", str(number + 1)) for number in range(8)]


def make_store(
    folder: pathlib.Path,
    rows: Sequence[Mapping[str, Any]] = ROWS,
    template: str | None = "seed",
    **settings: Any,
) -> str:
    """A store of conversations under the base tokenizer; returns its path."""
    base_tokenizer().save(folder / "base_tokenizer")
    given = [write_rows(folder / "chats.jsonl", rows)]
    chosen = chat_store.Settings(**settings)
    source = chat_store.Source(given, folder / "base_tokenizer", template, chosen)
    row_store.encode(source, 0.0, str(folder / "store"))
    return str(folder / "store")


def make_config(store: str, base: str = "base", **overrides: Any) -> RunConfig:
    """The run's config; overrides by dotted path, `__` for a dot."""
    texts = [("data.sources.chat.path", store), ("init.from", base)]
    texts += [(path.replace("__", "."), str(value)) for path, value in overrides.items()]
    return config_lib.resolve(RunConfig, config_lib.load(RunConfig, str(SFT_RUN), texts))


def make_program(config: RunConfig):
    """On one device."""
    return config_program.make_program(
        config, cross_entropy(config.loss), make_mesh(MeshConfig(), jax.devices()[:1])
    )


def save_base(workdir: pathlib.Path, tokenizer_sha256: str | None = None) -> None:
    """A checkpoint of a model that was never trained, as a run on plain text leaves it."""
    config = make_config("", "")
    sha256 = tokenizer_sha256 or base_tokenizer().sha256
    metadata = {
        "config": config_lib.to_plain(config),
        "data": {"text": {"tokenizer_sha256": sha256, "fingerprint": ""}},
        "metrics": {},
    }
    with Checkpoints(workdir / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(1, {"params": make_program(config).init().params}, metadata)
    base_tokenizer().save(workdir)
