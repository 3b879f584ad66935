"""`OptimConfig`: everything a run can choose about its optimizer and learning rate.

What the values do is in `schedules.py` (learning rate), `groups.py` (which parameters decay) and
`build.py` (the update). Checks that need the length of the run are in `schedules.phases`.
"""

import dataclasses
import math

from jaxtrain.optim.groups import GROUPS
from jaxtrain.options import option


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """The optimizer, its learning-rate schedule, weight decay and clipping."""

    name: str = option(
        "adamw",
        "Update rule; muon trains embeddings, head, norms and biases by AdamW at the same rate.",
        choices=("adamw", "lion", "muon"),
    )
    lr: float = option(3e-4, "Peak learning rate, before lr_batch_rule; Lion wants 3-10x less.")
    lr_batch_rule: str = option(
        "none",
        "Scales lr by (tokens per step / lr_base_batch_tokens): not, linearly, or by its root.",
        choices=("none", "linear", "sqrt"),
    )
    lr_base_batch_tokens: int | None = option(
        None, "Tokens per step at which lr was tuned; lr_batch_rule scales from there."
    )
    schedule: str = option(
        "cosine",
        "Learning rate after warm-up; wsd is warm-up, stable, decay.",
        choices=("cosine", "wsd", "linear", "constant", "inverse_sqrt"),
    )
    warmup_steps: int = option(0, "Updates of linear warm-up; 0 starts at the full rate.")
    warmup_tokens: int | None = option(None, "Warm-up in tokens, instead of warmup_steps.")
    decay_frac: float = option(
        0.2, "wsd: last fraction of the run that decays, unless steps or tokens are given."
    )
    decay_steps: int | None = option(None, "wsd: updates of decay at the end; wins over the frac.")
    decay_tokens: int | None = option(None, "wsd: tokens of decay at the end, instead of steps.")
    decay_shape: str = option(
        "1-sqrt",
        "wsd: how the rate falls during the decay.",
        choices=("linear", "cosine", "1-sqrt"),
    )
    final_lr_frac: float = option(
        0.1, "cosine, linear, wsd: fraction of the peak rate that the decay ends on."
    )
    weight_decay: float = option(0.1, "Decoupled: each update also subtracts this x rate x weight.")
    weight_decay_groups: tuple[str, ...] = option(
        ("matrix", "head"),
        "Which parameters weight_decay applies to, of: matrix, embedding, head, vector.",
    )
    clip_norm: float | None = option(1.0, "Limit of the global gradient norm; None does not clip.")
    b1: float = option(0.9, "adamw, lion: decay rate of the gradient average (muon: its AdamW).")
    b2: float | None = option(
        None,
        "adamw: decay rate of the squared-gradient average, None = 0.95; lion: 0.99 (momentum).",
    )
    eps: float = option(1e-8, "adamw: added to the root of the squared-gradient average.")
    state_format: str = option(
        "float32",
        "adamw, lion: of the moments of matrices; 8bit has a scale for 256 neighbours.",
        choices=("float32", "8bit"),
    )
    momentum: float = option(0.95, "muon: decay rate of the gradient average (Nesterov).")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), field.metadata["choices"]
            if choices and value not in choices:
                raise ValueError(f"{field.name}={value!r} must be one of {', '.join(choices)}.")
        self._check_ranges()
        unknown = [group for group in self.weight_decay_groups if group not in GROUPS]
        if unknown:
            raise ValueError(
                f"weight_decay_groups={self.weight_decay_groups} must hold only "
                f"{', '.join(GROUPS)}; remove {unknown[0]!r}."
            )
        if self.warmup_steps and self.warmup_tokens is not None:
            raise ValueError(
                f"warmup_tokens={self.warmup_tokens} must be None where "
                f"warmup_steps={self.warmup_steps} is set; give one of them."
            )
        if self.state_format != "float32" and self.name == "muon":
            raise ValueError(
                f"state_format={self.state_format!r} must be float32 where name='muon': its "
                "momentum of matrices has no other."
            )
        if self.decay_steps is not None and self.decay_tokens is not None:
            raise ValueError(
                f"decay_tokens={self.decay_tokens} must be None where "
                f"decay_steps={self.decay_steps} is set; give one of them."
            )
        if self.lr_batch_rule != "none" and self.lr_base_batch_tokens is None:
            raise ValueError(
                f"lr_base_batch_tokens=None must be set where lr_batch_rule="
                f"{self.lr_batch_rule!r}; give the tokens per step at which lr was tuned."
            )

    def _check_ranges(self) -> None:
        above_zero = ("lr", "eps", "lr_base_batch_tokens", "decay_frac", "decay_steps")
        for name in (*above_zero, "decay_tokens", "warmup_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} must be > 0 and finite.")
        for name in ("warmup_steps", "weight_decay", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                off = "; None turns clipping off" if name == "clip_norm" else ""
                raise ValueError(f"{name}={value} must be >= 0 and finite{off}.")
        for name in ("b1", "b2", "momentum"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name}={value} must be >= 0 and < 1.")
        for name in ("final_lr_frac", "decay_frac"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must be a fraction between 0 and 1.")
