"""Learning-rate schedules: pure functions of the number of updates applied so far.

With c applied updates before this one, N updates in the run and W of warm-up,

    lr(c) = peak · min(1, (c + 1) / W) · g(c)

and g, which is 1 until the rate begins to fall (W, for wsd N − decay), is in terms of the finished
part t of the fall, t = (c − start) / (N − start):

    constant       g = 1
    linear         g = f + (1 − f) · (1 − t)
    cosine         g = f + (1 − f) · (1 + cos πt) / 2        Loshchilov & Hutter, arXiv 1608.03983
    wsd            g = f + (1 − f) · shape(t)                Hu et al., arXiv 2404.06395 (MiniCPM)
                   shape: 1 − t, (1 + cos πt) / 2, or 1 − √t  Hägele et al., arXiv 2405.18392
    inverse_sqrt   g = √(W' / max(c, W')), W' = max(W, 1)    Raffel et al., arXiv 1910.10683

where f is `final_lr_frac`. The first update already moves (c + 1), update W is the first at the
full rate, and t reaches 1 only after the last update, so none is spent at a rate of 0. A step that
the guard skips is not counted: its successor runs at the rate it would have had.

The peak is `lr`, times (tokens per step / lr_base_batch_tokens)^p with p = 1 for the rule "linear"
(Goyal et al., arXiv 1706.02677) and p = 1/2 for "sqrt" (Malladi et al., arXiv 2205.10287). Where
the batch size changes over the run, the rate follows it step by step.

Branching from a stable phase. One long wsd run (the trunk) can serve many lengths: a branch loads
the whole state of a trunk checkpoint with c updates in its stable phase and sets
`loop.num_steps` = c + decay_steps. Counts go on from c (they are part of the optimizer state), so
the branch's rate is the trunk's up to c and falls from there to its end. `check_branch` refuses a
checkpoint at which the branch's schedule would already be falling.
"""

import bisect
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float, Int

from jaxtrain.optim.config import OptimConfig
from jaxtrain.optim.token_counts import TokensPerStep, stages, tokens_before
from jaxtrain.types import Array

Schedule = Callable[[Int[Array, ""] | int], Float[Array, ""]]

#: From 1 at t = 0 to 0 at t = 1, the finished part of the decay.
_SHAPES: Mapping[str, Callable[[Float[Array, ""]], Float[Array, ""]]] = {
    "linear": lambda t: 1.0 - t,
    "cosine": lambda t: 0.5 * (1.0 + jnp.cos(math.pi * t)),
    "1-sqrt": lambda t: 1.0 - jnp.sqrt(t),
}

_BATCH_POWER = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


class Phases(NamedTuple):
    """Counts of applied updates at which the rate's behaviour changes."""

    warmup_end: int  # from here on the full rate
    decay_start: int  # from here on falling; num_steps where it never falls
    num_steps: int


def phases(config: OptimConfig, num_steps: int, tokens_per_step: TokensPerStep) -> Phases:
    """Resolves lengths in steps, tokens and fractions against the length of the run.

    Raises:
      ValueError: where they do not fit into `num_steps`; begins with the name of the field.
    """
    total_tokens = tokens_before(num_steps, tokens_per_step)
    warmup, decay = config.warmup_steps, config.decay_steps
    if config.warmup_tokens is not None:
        warmup = _steps_with(config.warmup_tokens, num_steps, tokens_per_step)
    if warmup >= num_steps:
        raise ValueError(
            f"{_given(config, 'warmup', warmup)} must be < config.loop.num_steps={num_steps}; "
            "lower it or train longer."
        )
    if config.schedule in ("constant", "inverse_sqrt"):
        return Phases(warmup, num_steps, num_steps)
    if config.schedule in ("linear", "cosine"):
        return Phases(warmup, warmup, num_steps)
    if config.decay_tokens is not None:
        # The longest beginning of the run that leaves at least decay_tokens for its end.
        before = total_tokens - config.decay_tokens
        decay = num_steps + 1 - _steps_with(before + 1, num_steps, tokens_per_step)
    elif decay is None:
        decay = max(1, round(config.decay_frac * num_steps))
    if warmup + decay > num_steps:
        raise ValueError(
            f"{_given(config, 'decay', decay)} must be <= config.loop.num_steps={num_steps} - "
            f"{warmup} of warm-up; lower it or train longer."
        )
    return Phases(warmup, num_steps - decay, num_steps)


def make_schedule(config: OptimConfig, at: Phases, tokens_per_step: TokensPerStep) -> Schedule:
    """The learning rate as a function of the updates applied so far; float32."""
    peaks = [(start, _peak(config, tokens)) for start, tokens in stages(tokens_per_step)]

    def schedule(count: Int[Array, ""] | int) -> Float[Array, ""]:
        count = jnp.asarray(count, jnp.int32)
        c = count.astype(jnp.float32)
        peak = jnp.float32(peaks[0][1])
        for start, later in peaks[1:]:
            peak = jnp.where(count >= start, jnp.float32(later), peak)
        warmup = jnp.minimum(1.0, (c + 1.0) / max(at.warmup_end, 1))
        return peak * warmup * _fall(config, at, c)

    return schedule


def check_branch(config: OptimConfig, at: Phases, start_count: int) -> None:
    """Checks that a run which starts from another's checkpoint starts on a rate before its fall.

    Args:
      config: the optimizer of the branch.
      at: its phases.
      start_count: updates applied in the checkpoint that the run *began* from; not where it
        resumes.

    Raises:
      ValueError: where the rate would jump because the wsd decay should have begun earlier.
    """
    decay = at.num_steps - at.decay_start
    if config.schedule == "wsd" and start_count > at.decay_start:
        raise ValueError(
            f"{_given(config, 'decay', decay)} must be <= config.loop.num_steps={at.num_steps} - "
            f"{start_count} updates in the checkpoint that config.init.from names, or the rate "
            "would jump; lower it, train longer or branch from an earlier checkpoint."
        )


def describe(config: OptimConfig, at: Phases, tokens_per_step: TokensPerStep) -> str:
    """One line for the log: every phase with its update counts and rates."""
    peaks = [(start, _peak(config, tokens)) for start, tokens in stages(tokens_per_step)]
    rate = ", ".join(f"{peak:g}" + (f" from {start}" if start else "") for start, peak in peaks)
    parts = [f"lr {rate} ({config.schedule}, in applied updates)"]
    if config.lr_batch_rule != "none":
        parts.append(
            f"scaled from {config.lr:g} at {config.lr_base_batch_tokens:,} tokens per step by the "
            f"{config.lr_batch_rule} rule"
        )
    if at.warmup_end:
        parts.append(f"warm-up to {at.warmup_end}")
    if config.schedule == "inverse_sqrt":
        parts.append("then falling as 1/sqrt(count)")
    elif at.decay_start < at.num_steps:
        parts.append(
            f"{_shape_name(config)} decay from {at.decay_start} to {config.final_lr_frac:g} of it "
            f"at {at.num_steps}"
        )
    return "; ".join(parts)


def _fall(config: OptimConfig, at: Phases, c: Float[Array, ""]) -> Float[Array, ""] | float:
    """g(c) of the module docstring."""
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "inverse_sqrt":
        scale = float(max(at.warmup_end, 1))
        return jnp.sqrt(scale / jnp.maximum(c, scale))
    t = jnp.clip((c - at.decay_start) / (at.num_steps - at.decay_start), 0.0, 1.0)
    return config.final_lr_frac + (1.0 - config.final_lr_frac) * _SHAPES[_shape_name(config)](t)


def _shape_name(config: OptimConfig) -> str:
    return config.decay_shape if config.schedule == "wsd" else config.schedule


def _peak(config: OptimConfig, tokens: int) -> float:
    base = config.lr_base_batch_tokens
    return config.lr * (tokens / base) ** _BATCH_POWER[config.lr_batch_rule] if base else config.lr


def _steps_with(tokens: int, num_steps: int, tokens_per_step: TokensPerStep) -> int:
    """The fewest steps that hold `tokens`; num_steps + 1 where the whole run does not."""
    counts = range(num_steps + 1)
    return bisect.bisect_left(counts, tokens, key=lambda n: tokens_before(n, tokens_per_step))


def _given(config: OptimConfig, phase: str, num_steps: int) -> str:
    """The field that set the length of a phase, as the beginning of an error message."""
    for unit in ("tokens", "steps", "frac"):
        value = getattr(config, f"{phase}_{unit}", None)
        if value is not None:
            steps = "" if unit == "steps" else f" ({num_steps} steps)"
            return f"{phase}_{unit}={value}{steps}"
    raise AssertionError(phase)
