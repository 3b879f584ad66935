"""What is trained: two models of about 1B active parameters, on text that can be learned.

A dense decoder and a mixture of experts, each in bfloat16 and in FP8, on the same batches. `FULL`
is for one GPU of 80 GB or more, `DRY` the same plan in miniature for a CPU.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxtrain import config as config_lib
from jaxtrain.run_config import RunConfig
from jaxtrain.types import Batch

RECIPES = ("bfloat16", "fp8")
MODELS = ("dense", "moe")
_SUCCESSORS = (0.7, 0.15, 0.1, 0.05)  # probabilities of the ids that may follow one
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large everything is."""

    model: Mapping[str, Any]  # what both models have
    experts: Mapping[str, Any]  # what the mixture has besides
    rows: int
    length: int  # tokens of a row
    num_steps: int
    num_ids: int  # that occur in the text
    lr: float
    exclude: tuple[str, ...] = ("layers.0.*", "layers.-1.*")  # layers that stay in bfloat16

    def config(self, model: str, recipe: str, *, emulate: bool) -> RunConfig:
        """The run of one of MODELS under one of RECIPES."""
        c = config_lib.to_config_dict(RunConfig)
        c.model.update(self.model)
        if model == "moe":
            c.model.update(self.experts)
        c.data.batch_size, c.data.seq_len = self.rows, self.length
        c.loss.chunk_tokens = min(2048, self.length)
        c.optim.lr, c.optim.warmup_steps = self.lr, self.num_steps // 10
        c.loop.num_steps = self.num_steps
        c.precision.recipe, c.precision.emulate = recipe, emulate
        c.precision.exclude = self.exclude
        return config_lib.resolve(RunConfig, c)

    def batches(self) -> Iterator[Batch]:
        """The batches of every run, one for each step."""
        shape = (self.rows, self.length)
        ids = _chain(self.num_ids, self.num_steps * self.rows, self.length + 1)
        positions = np.broadcast_to(np.arange(self.length, dtype=np.int32), shape).copy()
        ones = np.ones(shape, np.int32)
        for step in range(self.num_steps):
            rows = ids[step * self.rows : (step + 1) * self.rows]
            yield Batch(rows[:, :-1], rows[:, 1:], ones.astype(np.float32), positions, ones)

    @property
    def guess_nats(self) -> float:
        """The loss of who knows which ids occur and nothing of their order."""
        return math.log(self.num_ids)

    @property
    def least_nats(self) -> float:
        """The loss of who knows all: the entropy of what follows an id."""
        return -sum(p * math.log(p) for p in _SUCCESSORS)


def _chain(num_ids: int, num_rows: int, length: int) -> np.ndarray:
    """Rows of a Markov chain in which every id has its own few successors; ids are equally likely.

    Ids stand in a circle in random order, and what follows one is among the next few there.
    """
    rng = np.random.default_rng(_SEED)
    circle = rng.permutation(num_ids).astype(np.int32)
    at = np.argsort(circle)
    successors = np.stack([circle[(at + 1 + i) % num_ids] for i in range(len(_SUCCESSORS))])
    ids = np.empty((num_rows, length), np.int32)
    ids[:, 0] = rng.integers(0, num_ids, num_rows)
    which = rng.choice(len(_SUCCESSORS), (length, num_rows), p=_SUCCESSORS)
    for place in range(1, length):
        ids[:, place] = successors[which[place], ids[:, place - 1]]
    return ids


FULL = Scale(
    model={
        "vocab_size": 32_768, "num_layers": 16, "d_model": 2048, "num_heads": 16,
        "num_kv_heads": 8, "head_dim": 128, "d_ff": 8192, "tied_head": True,
    },
    experts={
        "num_layers": 12, "num_experts": 16, "num_experts_per_token": 4, "d_ff_expert": 2048,
        "router_scores": "sigmoid", "router_selection_bias": True, "router_bias_rate": 0.001,
        "router_balance_weight": 1e-4, "expert_dispatch": "dropless",
        "remat": "save:query,key,value,attention_out",
    },
    rows=4,
    length=4096,
    num_steps=50,
    num_ids=512,
    lr=4e-4,
)  # fmt: skip
DRY = Scale(
    model={
        "vocab_size": 128, "num_layers": 2, "d_model": 64, "num_heads": 4, "num_kv_heads": 2,
        "head_dim": 16, "d_ff": 128, "tied_head": True,
    },
    experts={**FULL.experts, "num_layers": 2, "num_experts": 4, "num_experts_per_token": 2,
             "d_ff_expert": 64},
    rows=4,
    length=64,
    num_steps=30,
    num_ids=32,
    lr=1e-2,
    exclude=("layers.0.*",),
)  # fmt: skip
