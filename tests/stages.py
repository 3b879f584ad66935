"""Every training stage on eight rows: its launcher, its data, and what it starts from.

A launcher can be run to the end, or stopped where its loop would begin, with everything decided,
loaded and computed ahead: what its program is asked is then compiled quickly.
"""

import functools
import importlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxtrain import answer_store, chat_store, config_program, row_store, stage
from jaxtrain import config as config_lib
from jaxtrain.data.store import Tokenization
from jaxtrain.data.writer import PartWriter, create
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.models.parameters import flatten, nest
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.run_config import RunConfig
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from jaxtrain.train.loop import Loop
from jaxtrain.train.state import TrainState
from tests.chats import VOCAB_SIZE, base_tokenizer, exchange, write_rows
from tests.runs import ROOT
from tests.stage_steps import Start, quick_eval_step, quick_train_step

STAGE_RUN = ROOT / "tests" / "stage_run.py"
NUM_ROWS = 8
TEXTS = [(f"{number}+{number}?", str(2 * number), f"no {number}") for number in range(NUM_ROWS)]


class Stage(NamedTuple):
    """A launcher, and flags without the leading `--config.`."""

    launcher: str
    data: str  # a key of ROWS, or "text"
    flags: Mapping[str, str]
    tree: str = "RunConfig"


_DPO = Stage("dpo", "pairs", {"reference.runs": "in_step", "model.dropout": "0.1"}, "PreferenceRun")
_REWARD = Stage("reward", "pairs", {"model.scalar_head": "true", "optim.lr": "1e-3"}, "RewardRun")
_DISTILL = Stage("distill", "chat", {"init.from": "None", "loss.temperature": "2.0"}, "DistillRun")
STAGES = {
    "pretrain": Stage("pretrain", "text", {"init.from": "None"}),
    "sft": Stage("sft", "chat", {}),
    "reward": Stage(
        "reward", "pairs", {"model.scalar_head": "true", "optim.lr": "1e-3"}, "RewardRun"
    ),
    "dpo_in_step": _DPO,
    "dpo_ahead": _DPO._replace(flags={**_DPO.flags, "reference.runs": "ahead"}),
    "kto": _DPO._replace(data="labels", flags={**_DPO.flags, "loss.kind": "kto"}),
    "distill_in_step": _DISTILL,
    "distill_ahead": _DISTILL._replace(
        flags={**_DISTILL.flags, "teacher.runs": "ahead", "loss.top_k": "8"}
    ),
}
#: Rows of each kind of store, and the positions that hold one row (or group) and not two.
ROWS: Mapping[str, list[dict[str, Any]]] = {
    "chat": [exchange(prompt, right) for prompt, right, _ in TEXTS],
    "pairs": [
        {"prompt": prompt, "chosen": right, "rejected": wrong} for prompt, right, wrong in TEXTS
    ],
    "ranks": [
        {"prompt": prompt, "answers": [right, wrong, f"{wrong}!"]} for prompt, right, wrong in TEXTS
    ],
    "steps": [
        {"prompt": prompt, "completions": [right, wrong], "labels": [True, False]}
        for prompt, right, wrong in TEXTS
    ],
    "labels": [
        {"prompt": prompt, "completion": text, "label": good}
        for prompt, right, wrong in TEXTS
        for text, good in ((right, True), (wrong, False))
    ],
}
#: A teacher is wider, and its vocabulary is padded.
TEACHER = {"model.d_model": "24", "model.vocab_size": str(VOCAB_SIZE + 4)}
SEQ_LEN = {"text": 16, "chat": 16, "pairs": 32, "ranks": 48, "steps": 24, "labels": 64}


class Stages:
    """Stores and models below a folder, and starts, made when first asked for."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._started: dict[str, Start] = {}

    @functools.cached_property
    def base(self) -> pathlib.Path:
        """The model that runs start from."""
        return save_model(self.folder / "base", 0)

    @functools.cached_property
    def teacher(self) -> pathlib.Path:
        """A wider model with a padded vocabulary and more decided probabilities."""
        return save_model(self.folder / "teacher", 1, scale=0.4, shape=TEACHER)

    def store(self, data: str) -> str:
        """A store of eight rows (or groups)."""
        out = self.folder / data
        if not out.exists():
            make_store(data, out)
        return str(out)

    def data(self, kind: str) -> dict[str, str]:
        """Overrides of a run's data by a store of that kind."""
        path, length = self.store(kind), str(SEQ_LEN[kind])
        return {
            "data__sources__rows__path": path,
            "data__eval_sources__heldout__path": path,
            "data__seq_len": length,
        }

    def flags(self, name: str, **more: Any) -> dict[str, str]:
        """What a stage's run is told; `more` by dotted path, `__` for a dot."""
        this = STAGES[name]
        given = {**self.data(this.data), "init__from": self.base}
        if this.launcher == "distill":
            given["teacher__from"] = self.teacher
        given, more = (
            {path.replace("__", "."): str(value) for path, value in each.items()}
            for each in (given, more)
        )
        return {**given, **this.flags, **more}

    def run(self, name: str, workdir: pathlib.Path, **more: Any) -> None:
        """Runs a stage's launcher to the end, on one device, compiling quickly."""
        run = Loop.run

        def run_quickly(loop: Loop, state: TrainState) -> TrainState:
            steps = {"train_step": quick_train_step(loop.program)}
            steps["eval_step"] = quick_eval_step(loop.program)
            loop.program.__dict__.update(steps)  # where a cached property is kept
            return run(loop, state)

        self._launch(name, workdir, run_quickly, more)

    def start(self, name: str, workdir: pathlib.Path, **more: Any) -> Start:
        """Runs a stage's launcher up to its loop."""
        found = []
        self._launch(name, workdir, lambda loop, state: found.append((loop, state)), more)
        ((loop, state),) = found
        return Start(loop, state, self.config(name, **more), workdir)

    def started(self, name: str) -> Start:
        """The start of a stage as it is, made once; its state must not be donated."""
        if name not in self._started:
            self._started[name] = self.start(name, self.folder / f"started_{name}")
        return self._started[name]

    def _launch(
        self, name: str, workdir: pathlib.Path, run: Callable[..., Any], more: Mapping[str, Any]
    ) -> None:
        this = STAGES[name]
        flags = [f"--config.{path}={text}" for path, text in self.flags(name, **more).items()]
        argv = [name, f"--config={STAGE_RUN}:{this.tree}", f"--workdir={workdir}", *flags]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", argv)
            patch.setattr(Loop, "run", run)
            patch.setattr(stage, "make_mesh", lambda config: make_mesh(config, jax.devices()[:1]))
            patch.setattr(stage, "peak_flops", lambda *_: (1e12, "not measured"))
            importlib.import_module(f"jaxtrain.{this.launcher}").main()

    def config(self, name: str, **more: Any) -> RunConfig:
        """The config of a stage's run."""
        tree = getattr(importlib.import_module("jaxtrain.run_config"), STAGES[name].tree)
        texts = list(self.flags(name, **more).items())
        file = f"{STAGE_RUN}:{STAGES[name].tree}"
        return config_lib.resolve(tree, config_lib.load(tree, file, texts))


def make_store(data: str, out: pathlib.Path, like: Tokenizer | None = None) -> None:
    """Makes a store of ROWS, or of plain documents, with the base tokenizer or another."""
    if data == "text":
        _make_text_store(out)
        return
    tokenizer = out.parent / f"{data}_tokenizer"
    (like or base_tokenizer()).save(tokenizer)
    given = [write_rows(out.parent / f"{data}.jsonl", ROWS[data])]
    if data == "chat":
        source = chat_store.Source(given, tokenizer, "seed", chat_store.Settings())
    else:
        settings = answer_store.Settings(kl_group=2)
        source = answer_store.Source(given, tokenizer, "seed", settings)
    row_store.encode(source, 0.0, str(out))


def _make_text_store(out: pathlib.Path) -> None:
    tokenizer = base_tokenizer()
    end = tokenizer.control_id("eos")
    tokenization = Tokenization(VOCAB_SIZE, dict(tokenizer.special_ids), tokenizer.sha256, {})
    with PartWriter(str(out), tokenization) as writer:
        for number, (prompt, right, _) in enumerate(TEXTS):
            ids = np.asarray([*tokenizer.encode(f"{prompt} = {right}."), end])
            writer.add(
                ids,
                document_id=str(number),
                source=f"text.jsonl:{number}",
                num_text_bytes=len(ids) - 1,
            )
    create(str(out), tokenization, "x" * 64, writer.parts)
    tokenizer.save(out)


def save_model(
    workdir: pathlib.Path,
    seed: int,
    scale: float = 0.2,
    shape: Mapping[str, str] = {},
    like: Tokenizer | None = None,
) -> pathlib.Path:
    """A checkpoint of random parameters, matrices of this scale, with a tokenizer beside."""
    config = config_lib.load(RunConfig, str(STAGE_RUN), shape.items())
    config = config_lib.resolve(RunConfig, config)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    shapes = flatten(
        config_program.make_program(config, cross_entropy(config.loss), mesh).model.params
    )
    rng = np.random.default_rng(seed)
    params = {
        path: scale * rng.standard_normal(leaf.shape, np.float32) + is_scale(path)
        for path, leaf in shapes.items()
    }
    tokenizer = like or base_tokenizer()
    metadata = {
        "config": config_lib.to_plain(config),
        "data": {"text": {"tokenizer_sha256": tokenizer.sha256, "fingerprint": ""}},
        "metrics": {},
    }
    with Checkpoints(workdir / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(1, {"params": jax.device_put(nest(params))}, metadata)
    tokenizer.save(workdir)
    return workdir


def is_scale(path: str) -> bool:
    """Whether a parameter scales features, near 1."""
    return "norm" in path
