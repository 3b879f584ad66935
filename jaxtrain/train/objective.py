"""What a step minimises, microbatch by microbatch: the loss, and the model's auxiliary terms.

    minimised = loss_sum / weight_sum  +  auxiliary terms, each with its own denominator

All of it is over the whole batch. A microbatch contributes loss_sum + weight_sum of the whole batch
· its share of the terms; added up and divided by weight_sum once, that is the above, and its
gradient. Under accumulation the whole batch's denominators are therefore wanted ahead of the
gradients. The passes that find them are written as whole forward passes and XLA drops what nothing
asks for: everything but the counting, where the terms have denominators that depend on the batch
alone.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtrain import measured as measured_lib
from jaxtrain.models.parameters import flatten, read_measured, read_nontrained
from jaxtrain.train.state import TrainState
from jaxtrain.types import Array, Loss, LossSums

#: (params, nontrained, frozen trees, measured or None) -> the model, and frozen models by name
Bind = Callable[..., tuple[Any, Mapping[str, Any]]]


class Pass(NamedTuple):
    """What microbatches give, added up."""

    sums: LossSums
    auxiliary: Array | None  # the terms' share, in nats; None where the model has none
    measured: Any  # see `jaxtrain.measured`


class _Whole(NamedTuple):
    """What is known of the whole batch when a microbatch's gradient is taken."""

    weight_sum: Array
    measured: Any


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss on a model: `slots` are what the model may measure."""

    loss: Loss
    bind: Bind
    slots: Mapping[str, Any]
    grad_shardings: Any

    def __call__(
        self, state: TrainState, frozen: Mapping[str, Any], microbatches: Any, rng: Array
    ) -> tuple[Pass, Any]:
        """Sums and gradients of [M, B / M, …] microbatches.

        Gradients are those of the sums, times the loss scale where the state has one.
        """
        model, _ = self.bind(state.params, state.nontrained, frozen)
        whole = None
        if num_microbatches(microbatches) > 1 and measured_lib.has_auxiliary(model):
            whole = self._look_ahead(state, frozen, microbatches, rng)

        def one(microbatch: Any, rng: Array) -> tuple[Pass, Any]:
            return self._pass_and_grads(state, frozen, whole, microbatch, rng)

        return accumulate(one, self._add, microbatches, rng)

    def settled(self, state: TrainState, frozen: Mapping[str, Any], found: Pass) -> Any:
        """The lasting state that no gradient trains, moved by what the whole batch has measured."""
        model, _ = self.bind(state.params, state.nontrained, frozen, found.measured)
        measured_lib.settle(model)
        return read_nontrained(model, state.nontrained)

    def metrics(
        self, state: TrainState, frozen: Mapping[str, Any], found: Pass
    ) -> dict[str, Array]:
        """What the model has to say of the whole batch beside the loss's own metrics."""
        model, _ = self.bind(state.params, state.nontrained, frozen, found.measured)
        metrics = measured_lib.metrics(model)
        metrics |= measured_lib.schedules(model, state.num_updates)
        if found.auxiliary is None:
            return metrics
        sums = found.sums
        weight = jnp.where(sums.weight_sum > 0, sums.weight_sum, 1)
        total = sums.loss_sum / weight + found.auxiliary
        return {"auxiliary_loss": found.auxiliary, "total_loss": total, **metrics}

    def _add(self, total: tuple[Pass, Any], new: tuple[Pass, Any]) -> tuple[Pass, Any]:
        (a, grads), (b, new_grads) = total, new
        measured = measured_lib.combine(self.slots, a.measured, b.measured)
        sums, auxiliary = jax.tree.map(jnp.add, (a.sums, a.auxiliary), (b.sums, b.auxiliary))
        return Pass(sums, auxiliary, measured), jax.tree.map(jnp.add, grads, new_grads)

    def _forward(
        self, params: Any, state: TrainState, frozen: Any, measured: Any, batch: Any, rng: Array
    ) -> tuple[Any, LossSums]:
        model, others = self.bind(params, state.nontrained, frozen, measured)
        sums = self.loss(model, others, batch, rng)
        lasting = flatten(state.nontrained)
        changed = [
            path
            for path, leaf in flatten(read_nontrained(model, state.nontrained)).items()
            if leaf is not lasting[path]
        ]
        assert not changed, f"changed by a forward pass, not by settle(): {', '.join(changed)}"
        return model, sums

    def _pass_and_grads(
        self, state: TrainState, frozen: Any, whole: _Whole | None, batch: Any, rng: Array
    ) -> tuple[Pass, Any]:
        def minimised(params: Any, start: Any) -> tuple[Array, Pass]:
            model, sums = self._forward(params, state, frozen, start, batch, rng)
            measured = read_measured(model)
            if not measured_lib.has_auxiliary(model):
                return sums.loss_sum, Pass(sums, None, measured)
            known = whole or jax.lax.stop_gradient(_Whole(sums.weight_sum, measured))
            of_whole, _ = self.bind(params, state.nontrained, frozen, known.measured)
            share = measured_lib.auxiliary(model, of_whole, state.num_updates)
            return sums.loss_sum + known.weight_sum * share, Pass(sums, share, measured)

        def scaled(params: Any, start: Any) -> tuple[Array, Pass]:
            total, found = minimised(params, start)
            return total if state.loss_scale is None else total * state.loss_scale.scale, found

        start = measured_lib.zeros(self.slots)
        (grads, of_zeros), found = jax.grad(scaled, (0, 1), has_aux=True)(state.params, start)
        measured = measured_lib.of_both_passes(self.slots, found.measured, of_zeros)
        grads = jax.lax.with_sharding_constraint(grads, self.grad_shardings)
        return found._replace(measured=measured), grads

    def _look_ahead(self, state: TrainState, frozen: Any, microbatches: Any, rng: Array) -> _Whole:
        """What the terms have to know of the other microbatches."""
        start = measured_lib.zeros(self.slots)

        def one(microbatch: Any, rng: Array) -> _Whole:
            model, sums = self._forward(state.params, state, frozen, start, microbatch, rng)
            return _Whole(sums.weight_sum, read_measured(model))

        def add(a: _Whole, b: _Whole) -> _Whole:
            measured = measured_lib.combine(self.slots, a.measured, b.measured)
            return _Whole(a.weight_sum + b.weight_sum, measured)

        return accumulate(one, add, microbatches, rng)


def num_microbatches(microbatches: Any) -> int:
    """M of [M, B / M, …] arrays."""
    return jax.tree.leaves(microbatches)[0].shape[0]


def accumulate(
    run: Callable[[Any, Array], Any], add: Callable[[Any, Any], Any], microbatches: Any, rng: Array
) -> Any:
    """`run(microbatch, rng)` of [M, B / M, …] microbatches one after the other, added up."""
    num = num_microbatches(microbatches)
    first = jax.tree.map(lambda x: x[0], microbatches)
    if num == 1:
        return run(first, rng)

    def body(total: Any, indexed: Any) -> tuple[Any, None]:
        index, microbatch = indexed
        return add(total, run(microbatch, jax.random.fold_in(rng, index))), None

    shapes = jax.eval_shape(run, first, rng)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total, _ = jax.lax.scan(body, zeros, (jnp.arange(num), microbatches))
    return total
