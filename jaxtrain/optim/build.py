"""The optimizer of a run: clip, direction, weight decay, learning rate.

    g ← g · min(1, clip_norm / |g|)         over all parameters together
    d = direction of g                       adamw, lion or muon
    p ← p − lr(count) · (d + weight_decay · p)   decay only on `weight_decay_groups`

The decay is decoupled and multiplied by the learning rate, as torch.optim.AdamW does (Loshchilov &
Hutter, arXiv 1711.05101). AdamW: Kingma & Ba, arXiv 1412.6980, for the direction. Lion: Chen et
al., arXiv 2302.06675. Muon: see `muon.py`. Only the direction differs between them. State and
arithmetic are float32 (Newton–Schulz products and `eight_bit.py` excepted).

Which step is applied at all is decided in train/step.py; a NaN passes through every part here.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxtrain.optim import schedules
from jaxtrain.optim.config import OptimConfig
from jaxtrain.optim.eight_bit import in_eight_bits
from jaxtrain.optim.groups import group_tree
from jaxtrain.optim.muon import scale_by_muon
from jaxtrain.optim.schedules import Schedule
from jaxtrain.optim.token_counts import TokensPerStep


class Optimizer(NamedTuple):
    """What the train step needs, and what the log says about it."""

    transform: optax.GradientTransformation
    schedule: Schedule  # updates applied so far -> learning rate
    summary: str


def build(
    config: OptimConfig,
    num_steps: int,
    axes: Any,
    tokens_per_step: TokensPerStep,
    start_count: int = 0,
) -> Optimizer:
    """The optimizer of a run.

    Args:
      config: the run's `optim` section.
      num_steps: updates from the very first to the last of this run (`loop.num_steps`).
      axes: dimension letters of the parameters, a nested dict like theirs.
      tokens_per_step: target positions of a global batch; pairs (first step, tokens) where it
        changes over the run.
      start_count: updates in the checkpoint of another run that this one began from
        (`config.init.from`); 0 for a run from scratch. The same when the run is resumed.

    Raises:
      ValueError: where a length does not fit the run; begins with the name of the field.
    """
    at = schedules.phases(config, num_steps, tokens_per_step)
    schedules.check_branch(config, at, start_count)
    schedule = schedules.make_schedule(config, at, tokens_per_step)
    groups = group_tree(axes)
    is_decayed = jax.tree.map(lambda group: group in config.weight_decay_groups, groups)
    clip = () if config.clip_norm is None else (clip_by_global_norm(config.clip_norm),)
    transform = optax.chain(
        *clip,
        _direction(config, groups, axes),
        optax.add_decayed_weights(config.weight_decay, is_decayed),
        optax.scale_by_learning_rate(schedule),
    )
    summary = f"{_describe(config)}\n{schedules.describe(config, at, tokens_per_step)}"
    return Optimizer(transform, schedule, summary)


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Scales gradients down to a global norm of at most `limit`.

    `optax.clip_by_global_norm` divides by the norm even where it is 0, which makes NaN of zero
    gradients at limit 0 (google-deepmind/optax#1752). Non-finite gradients stay non-finite: to
    drop them is the train step's decision.
    """

    def init(params: Any) -> optax.EmptyState:
        del params
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        norm = optax.tree.norm(updates)
        scale = jnp.where(norm > limit, limit / norm, 1.0)
        return jax.tree.map(lambda g: scale * g, updates), state

    return optax.GradientTransformation(init, update)


def _direction(config: OptimConfig, groups: Any, axes: Any) -> optax.GradientTransformation:
    adam = _scale_by_adam(config)
    if config.name != "muon":
        lion = optax.scale_by_lion(config.b1, _b2(config))
        direction = lion if config.name == "lion" else adam
        if config.state_format == "float32":
            return direction
        formats = jax.tree.map(lambda group: "8bit" if group == "matrix" else "float32", groups)
        return optax.partition({"8bit": in_eight_bits(direction), "float32": direction}, formats)
    labels = jax.tree.map(lambda group: "muon" if group == "matrix" else "adam", groups)
    return optax.partition({"muon": scale_by_muon(axes, config.momentum), "adam": adam}, labels)


def _scale_by_adam(config: OptimConfig) -> optax.GradientTransformation:
    """`optax.scale_by_adam`, also under strict promotion: it raises a float to an int32 count."""
    adam = optax.scale_by_adam(config.b1, _b2(config), config.eps)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):
            return adam.update(updates, state, params)

    return optax.GradientTransformation(adam.init, update)


def _b2(config: OptimConfig) -> float:
    """Each method's published value unless set."""
    if config.b2 is not None:
        return config.b2
    return 0.99 if config.name == "lion" else 0.95


def _describe(config: OptimConfig) -> str:
    moments = f"b1 {config.b1:g}, b2 {_b2(config):g}"
    method = {
        "adamw": f"adamw ({moments}, eps {config.eps:g})",
        "lion": f"lion ({moments})",
        "muon": f"muon (momentum {config.momentum:g}) on matrices, adamw ({moments}, eps "
        f"{config.eps:g}) on the rest",
    }[config.name]
    if config.state_format == "8bit":
        method += ", moments of matrices in 8 bits"
    on = ", ".join(config.weight_decay_groups) or "nothing"
    clip = "not clipped" if config.clip_norm is None else f"clipped at norm {config.clip_norm:g}"
    return f"{method}; weight decay {config.weight_decay:g} × lr on {on}; gradients {clip}"
