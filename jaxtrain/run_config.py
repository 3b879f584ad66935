"""`RunConfig`: every choice of a training run, and the checks across its sections.

Stages differ in their loss: each has a tree of its own, which is this one with another section
`loss` and, where the loss sees another model, a section that says which.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxtrain import config as config_lib
from jaxtrain.data.config import DataConfig
from jaxtrain.lora.config import LoraConfig
from jaxtrain.losses.distill import DistillConfig
from jaxtrain.losses.preference import PreferenceConfig
from jaxtrain.losses.reward import RewardConfig
from jaxtrain.losses.xent import XentConfig
from jaxtrain.models.config import ModelConfig
from jaxtrain.optim.config import OptimConfig
from jaxtrain.options import option
from jaxtrain.parallel.mesh import MeshConfig
from jaxtrain.parallel.sharding import TABLES
from jaxtrain.precision.recipe import RECIPES, PrecisionConfig, training_recipe
from jaxtrain.train.checkpoint import CheckpointConfig
from jaxtrain.train.loop import LoopConfig


@dataclasses.dataclass(frozen=True)
class InitConfig:
    """Where a new run starts from; a run that already has checkpoints resumes from its own."""

    from_: str | None = option(
        None,
        "Checkpoint to start from, WORKDIR@STEP or WORKDIR (its latest), or a Hugging Face model's "
        "directory.",
    )
    load: str = option(
        "state",
        "What is taken: state continues step, data position, moments and schedule (WSD branch); "
        "params starts a new run from the weights.",
        choices=("state", "params"),
    )


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One training run."""

    model: ModelConfig
    data: DataConfig
    optim: OptimConfig
    loss: XentConfig
    mesh: MeshConfig
    precision: PrecisionConfig
    loop: LoopConfig
    checkpoint: CheckpointConfig
    init: InitConfig
    # With a default: checkpoints of earlier versions have no such section.
    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)

    def __post_init__(self):
        if self.model.bidirectional != (self.data.objective == "masked_lm"):
            raise ValueError(
                f"model.bidirectional={self.model.bidirectional} does not fit "
                f"config.data.objective={self.data.objective!r}: a token that sees the next one "
                "cannot be trained to predict it, and masked_lm needs both sides."
            )
        if self.lora.rank is not None and self.init.from_ is None:
            raise ValueError(
                f"lora.rank={self.lora.rank} adapts a model that is there; name it with "
                "config.init.from (and config.init.load=params), or set config.lora.rank=None."
            )
        if self.lora.rank is not None and self.model.router_bias_rate:
            raise ValueError(
                f"model.router_bias_rate={self.model.router_bias_rate} must be 0 with lora.rank: "
                "the router is frozen with the base, and its bias is part of it."
            )

    @property
    def isolated(self) -> bool:
        """Whether rows hold documents (or filler before tokens' sight) to keep apart."""
        return self.data.packing != "concat" or self.model.bidirectional


IN_STEP, AHEAD = "in_step", "ahead"
_RUNS = (
    "When it runs: ahead, once over all data before training, after which it is let go and what it "
    "said comes with the batches; in_step, beside the trained model on every batch (the cheaper "
    "one in time for less than an epoch)."
)
_WHERE = "WORKDIR, WORKDIR@STEP or the directory of a Hugging Face model"


@dataclasses.dataclass(frozen=True)
class ReferenceConfig:
    """The frozen policy that a preference loss compares with."""

    from_: str | None = option(
        None, f"Where it is: {_WHERE}; None: the model that the run starts from.", resumable=True
    )
    runs: str = option(AHEAD, _RUNS, choices=(AHEAD, IN_STEP))


@dataclasses.dataclass(frozen=True)
class TeacherConfig:
    """The frozen model that a student learns from."""

    from_: str | None = option(None, f"Where it is: {_WHERE}.", resumable=True)
    runs: str = option(
        IN_STEP, f"{_RUNS} Ahead its likeliest loss.top_k ids are kept.", choices=(IN_STEP, AHEAD)
    )
    recipe: str | None = option(
        None, "Its precision recipe; None: the run's.", choices=tuple(RECIPES)
    )
    sharding: str | None = option(
        None,
        "How it is sharded; None: as the student.",
        choices=tuple(TABLES),
        resumable=True,
    )


@dataclasses.dataclass(frozen=True)
class PreferenceRun(RunConfig):
    """A run of `jaxtrain.dpo`."""

    loss: PreferenceConfig
    reference: ReferenceConfig = dataclasses.field(default_factory=ReferenceConfig)

    def __post_init__(self):
        super().__post_init__()
        _check_trains_no_mtp(self.model)
        if self.reference.from_ is not None and not self.loss.needs_reference:
            raise ValueError(
                f"reference.from={self.reference.from_!r} has no use: config.loss.kind="
                f"{self.loss.kind!r} compares with no reference; leave it out."
            )
        if self.precision.grad_rounding != "nearest":
            raise ValueError(
                f"precision.grad_rounding={self.precision.grad_rounding!r} draws from a key, and "
                "preference losses compute without one, both halves of a pair alike; set "
                "config.precision.grad_rounding=nearest."
            )
        if self.loss.needs_reference and training_recipe(self.precision).quantization is not None:
            raise ValueError(
                f"precision.recipe={self.precision.recipe!r} is for training alone: a reference "
                "would compute otherwise than the policy, and their difference be read as a "
                "preference; set config.precision.recipe=bfloat16."
            )


@dataclasses.dataclass(frozen=True)
class RewardRun(RunConfig):
    """A run of `jaxtrain.reward`."""

    loss: RewardConfig

    def __post_init__(self):
        super().__post_init__()
        if not self.model.scalar_head:
            raise ValueError(
                "model.scalar_head=False predicts tokens; a reward model has a score instead: set "
                "config.model.scalar_head=True."
            )


@dataclasses.dataclass(frozen=True)
class DistillRun(RunConfig):
    """A run of `jaxtrain.distill`."""

    loss: DistillConfig
    teacher: TeacherConfig = dataclasses.field(default_factory=TeacherConfig)

    def __post_init__(self):
        super().__post_init__()
        _check_trains_no_mtp(self.model)
        if self.teacher.from_ is None:
            raise ValueError(
                "teacher.from is not set; name the model to learn from: a workdir, or the "
                "directory of a Hugging Face model."
            )
        if self.teacher.runs == AHEAD and self.loss.top_k is None:
            raise ValueError(
                "teacher.runs='ahead' keeps the teacher's likeliest ids; say how many with "
                "config.loss.top_k."
            )
        if self.teacher.runs == AHEAD and self.loss.hidden_weight:
            raise ValueError(
                f"loss.hidden_weight={self.loss.hidden_weight} needs the teacher's hidden states; "
                "set config.teacher.runs=in_step."
            )


def _check_trains_no_mtp(model: ModelConfig) -> None:
    if model.trains_mtp:
        raise ValueError(
            f"model.mtp_weight={model.mtp_weight} has no use: this stage's loss trains no modules "
            "of multi-token prediction. Set config.model.mtp_weight=0 (and no mtp_weight_changes) "
            "to keep them, which weight decay alone then moves, or config.model.num_mtp_layers=0."
        )


#: The tree of each training stage.
STAGES: Mapping[str, type[RunConfig]] = {
    "pretrain": RunConfig,
    "sft": RunConfig,
    "reward": RewardRun,
    "dpo": PreferenceRun,
    "distill": DistillRun,
}


def of_model(shape: ModelConfig, recipe: str) -> RunConfig:
    """The config of a model that is not trained here: every other choice at its default."""
    c = config_lib.to_config_dict(RunConfig)
    config_lib.assign(c.model, shape)
    c.precision.recipe = recipe
    c.loop.num_steps = 1  # what must be set, of a run that nobody starts
    return config_lib.resolve(RunConfig, c)


def of_any_stage(plain: Mapping[str, Any]) -> RunConfig:
    """The config that a checkpoint holds, whatever stage it is of; its loss is left out."""
    sections = {field.name for field in dataclasses.fields(RunConfig)} - {"loss"}
    shared = {name: section for name, section in plain.items() if name in sections}
    return config_lib.resolve(RunConfig, {**shared, "loss": XentConfig()})


def split_changes(
    stage: type[RunConfig], old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Differences of two plain configs as (those that make another run, those that may change).

    Args:
      stage: the tree that `new` is of.
      old: may be of an earlier version: a key that it lacks had today's default.
    """
    resumable = {knob.path for knob in config_lib.knobs(stage) if knob.resumable}
    breaking, harmless = [], []
    for line in config_lib.differences(config_lib.fill(stage, old), new):
        path = line.split(":")[0].removeprefix("config.")
        keys = path.split(".")
        is_source = keys[:2] in (["data", "sources"], ["data", "eval_sources"])
        if is_source and len(keys) > 3:
            path = ".".join([*keys[:2], "*", *keys[3:]])
        # A source that comes or goes is judged by what the batches so far were (continuity.py).
        is_whole_source = is_source and len(keys) == 3
        # The base of a LoRA run is told by its content (stored_weights.py), wherever it lies.
        is_base = path == "init.from" and new["lora"]["rank"] is not None
        may_change = is_whole_source or is_base or path in resumable
        (harmless if may_change else breaking).append(line)
    return breaking, harmless
