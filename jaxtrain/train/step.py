"""The one jitted update of every stage: losses differ, this does not.

sums, grads = Σ over microbatches          (and over the mesh, by XLA)
loss, grads = sums / weight, grads / weight   once, globally
update      = optimizer(grads)             applied only if everything is finite
nontrained  = settled(measured)            likewise, once per update

How a microbatch makes sums and gradients is in `objective.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtrain.parallel.mesh import BATCH_AXES
from jaxtrain.precision import loss_scaling
from jaxtrain.precision.loss_scaling import LossScale
from jaxtrain.train.objective import Bind, Objective
from jaxtrain.train.state import TrainState, add_tokens
from jaxtrain.types import Array, Batch, Loss, LossSums

Metrics = dict[str, Array]
TrainStep = Callable[[TrainState, Mapping[str, Any], Any], tuple[TrainState, Metrics]]


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[Array], Array],
    mesh: Mesh,
    num_microbatches: int = 1,
) -> TrainStep:
    """The update `(state, frozen, batch) -> (state, metrics)`, to be jitted by the caller."""

    def train_step(state: TrainState, frozen: Mapping[str, Any], batch: Any):
        rng = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        microbatches = jax.tree.map(lambda x: split_rows(x, num_microbatches, mesh), batch)
        found, grads = objective(state, frozen, microbatches, rng)
        sums = found.sums
        weight = jnp.where(sums.weight_sum > 0, sums.weight_sum, 1)
        scale = 1.0 if state.loss_scale is None else state.loss_scale.scale
        grads = jax.tree.map(lambda g: g / (weight * scale), grads)
        grad_norm = optax.tree.norm(grads)

        # A step without targets or with a non-finite value changes nothing but its counters. A
        # conditional, not a choice leaf by leaf, which would keep XLA from updating in place.
        def apply():
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            nontrained = objective.settled(state, frozen, found)
            return params, opt_state, nontrained, optax.tree.norm(updates)

        def keep():
            return state.params, state.opt_state, state.nontrained, jnp.zeros_like(grad_norm)

        is_finite = jnp.isfinite(sums.loss_sum) & jnp.isfinite(grad_norm)
        is_finite &= all_finite(found.measured)
        ok = is_finite & (sums.weight_sum > 0)
        params, opt_state, nontrained, update_norm = jax.lax.cond(ok, apply, keep)
        skipped = 1 - ok.astype(jnp.int32)
        num_tokens, num_positions = count_tokens(batch)
        new_state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            nontrained=nontrained,
            rng=state.rng,
            skipped=state.skipped + skipped,
            skipped_in_row=(state.skipped_in_row + skipped) * skipped,
            tokens=add_tokens(state.tokens, num_tokens),
            loss_scale=scale_after(state.loss_scale, is_finite),
        )
        metrics = {
            "loss": sums.loss_sum / weight,
            **divide(sums.metric_sums),
            **objective.metrics(state, frozen, found),
            "grad_norm": grad_norm,
            "update_norm": update_norm,
            "lr": schedule(state.num_updates),
            **norms(params),
            "target_weight": sums.weight_sum,
            "batch_tokens": num_tokens,
            "batch_positions": jnp.uint32(num_positions),
            "tokens": new_state.tokens,
            "skipped": new_state.skipped,
            "skipped_in_row": new_state.skipped_in_row,
        }
        if state.loss_scale is not None:
            metrics["loss_scale"] = state.loss_scale.scale
        return new_state, metrics

    return train_step


def make_eval_step(
    loss: Loss, bind: Bind
) -> Callable[[TrainState, Mapping[str, Any], Any], LossSums]:
    """`(state, frozen, batch) -> LossSums` without an update; the caller adds up and divides."""

    def eval_step(state: TrainState, frozen: Mapping[str, Any], batch: Any) -> LossSums:
        model, others = bind(state.params, state.nontrained, frozen)
        return loss(model, others, batch, None)  # no dropout

    return eval_step


def split_rows(x: Array, num: int, mesh: Mesh) -> Array:
    """[B, …] as [num, B / num, …] such that each device's rows stay on it.

    Microbatch j takes rows j, j + num, j + 2·num, …: rows are split over devices in contiguous
    runs, so every microbatch has as many rows of each device.
    """
    split = x.reshape(x.shape[0] // num, num, *x.shape[1:]).swapaxes(0, 1)
    spec = PartitionSpec(None, BATCH_AXES)
    return jax.lax.with_sharding_constraint(split, NamedSharding(mesh, spec))


def divide(metric_sums: Mapping[str, tuple[Array, Array]]) -> Metrics:
    """Sums as means; a count of 0 gives 0."""
    return {
        name: total / jnp.where(count > 0, count, 1) for name, (total, count) in metric_sums.items()
    }


def scale_after(now: LossScale | None, is_finite: Array) -> LossScale | None:
    """The loss scale of the next step; None where the recipe has none."""
    return None if now is None else loss_scaling.updated(now, is_finite)


def all_finite(tree: Any) -> Array:
    """Whether no leaf holds an infinity or a NaN."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.bool_(True)


def count_tokens(batch: Any) -> tuple[Array, int]:
    """(tokens that are not filler, positions) of all `Batch`es that a batch is made of."""
    leaves = jax.tree.leaves(batch, is_leaf=lambda node: isinstance(node, Batch))
    parts = [leaf for leaf in leaves if isinstance(leaf, Batch)]
    counts = [jnp.sum(part.segment_ids > 0, dtype=jnp.uint32) for part in parts]
    return sum(counts[1:], counts[0]), sum(part.segment_ids.size for part in parts)


def norms(params: Mapping[str, Any]) -> Metrics:
    """Euclidean norm of all parameters and of each top-level group."""
    groups = {f"param_norm/{name}": optax.tree.norm(group) for name, group in params.items()}
    return {"param_norm": optax.tree.norm(list(groups.values())), **groups}
