"""What the passes of a step measure beside their loss, and what a step does with it.

    module:  self.load_E = Total(None, extent=(num_experts,))        self.load_E.note(counts_E)
    step:    measured = sums (or maxima) over microbatches and mesh, starting from zeros
             objective += auxiliary(model, whole, num_updates)        for each microbatch
             settle(model)                                            once, if the update is applied

A `Measured` variable is None unless a training step asks, and then `note` does nothing. No pass
changes the model's lasting state: only `settle` does, which sees what the whole batch has measured.
So a router's bias or a history of maxima moves once per update, however a batch is cut into
microbatches, and not at all when the update is skipped.

An auxiliary term's denominator is not the loss's (tokens of a layer, sequences), so it is no part
of `LossSums`. Each microbatch contributes its share of the mean over the whole batch, whose
measures, as far as the shares ask for them, are known before the gradient is taken.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

Tree = Mapping[str, Any]


class Settled(nnx.Param):
    """A weight of the model that no gradient trains: a module's `settle` moves it."""


class Measured(nnx.Variable):
    """A measure of `extent`, float32 and at least 0; None where no step asks."""

    def note(self, value: jax.Array) -> None:
        """Takes in what one pass has seen."""
        seen = self.get_value()
        if seen is not None:
            self.set_value(self.combine(seen, value.astype(jnp.float32)))

    @staticmethod
    def combine(a: jax.Array, b: jax.Array) -> jax.Array:
        """Two measures as one."""
        raise NotImplementedError


class Total(Measured):
    """A sum; gradients flow through it into auxiliary losses."""

    @staticmethod
    def combine(a: jax.Array, b: jax.Array) -> jax.Array:
        return a + b


class Largest(Measured):
    """A maximum."""

    @staticmethod
    def combine(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.maximum(a, b)


class LargestOfGradient(Largest):
    """A maximum that the backward pass sees.

    Its value is an operand of a `custom_vjp` that gives as this operand's cotangent what it has
    measured. Used more than once in a pass, the cotangents add up: a bound of the maximum.
    """


@dataclasses.dataclass(frozen=True)
class Slot:
    """A `Measured` variable of a model, without a value."""

    kind: type[Measured]
    shape: tuple[int, ...]


class Measuring(nnx.Module):
    """A module that acts on what it has measured. Stacked, its arrays have a leading "L"."""

    @property
    def has_auxiliary(self) -> bool:
        """Whether it adds to what is minimised."""
        return False

    def auxiliary(self, whole: Any) -> jax.Array:
        """Its share of the auxiliary losses' mean over the whole batch, weighted, in nats.

        Linear in what this module has measured. `whole` is the same module with the measures of
        the whole batch, through which no gradient flows.
        """
        raise NotImplementedError

    def auxiliary_weight(self, num_updates: jax.Array) -> jax.Array | float:
        """A factor of `auxiliary` that follows a schedule, after so many applied updates."""
        del num_updates
        return 1.0

    def settle(self) -> None:
        """Moves lasting state by the measures of the whole batch."""

    def metrics(self) -> Mapping[str, jax.Array]:
        """What to log of the measures of the whole batch."""
        return {}

    def schedules(self, num_updates: jax.Array) -> Mapping[str, jax.Array]:
        """What to log of schedules that it follows, after so many applied updates."""
        del num_updates
        return {}


def asked(module: nnx.Module) -> nnx.State:
    """The measures that a step asks for, as they stand."""

    def is_asked(path: Any, node: Any) -> bool:
        del path
        return isinstance(node, Measured) and node.get_value() is not None

    return nnx.state(module, is_asked)


def has_auxiliary(model: nnx.Module) -> bool:
    """Whether any module adds to what is minimised."""
    return any(module.has_auxiliary for module in _measuring(model))


def auxiliary(model: nnx.Module, whole: nnx.Module, num_updates: jax.Array) -> jax.Array:
    """The sum of all modules' auxiliary terms; see `Measuring.auxiliary`."""
    pairs = zip(_measuring(model), _measuring(whole), strict=True)
    terms = (a.auxiliary_weight(num_updates) * a.auxiliary(b) for a, b in pairs if a.has_auxiliary)
    return sum(terms, jnp.zeros((), jnp.float32))


def settle(model: nnx.Module) -> None:
    """Every module's `settle`, in place."""
    for module in _measuring(model):
        module.settle()


def metrics(model: nnx.Module) -> dict[str, jax.Array]:
    """Every module's `metrics`, behind the name of its stack where that is not "blocks"."""
    found: dict[str, jax.Array] = {}
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Measuring):
            stack = f"{path[0]}/" if path and path[0] != "blocks" else ""
            found |= {f"{stack}{name}": value for name, value in module.metrics().items()}
    return found


def schedules(model: nnx.Module, num_updates: jax.Array) -> dict[str, jax.Array]:
    """Every module's `schedules`."""
    found: dict[str, jax.Array] = {}
    for module in _measuring(model):
        found |= module.schedules(num_updates)
    return found


def _measuring(model: nnx.Module) -> Iterator[Measuring]:
    return (module for _, module in nnx.iter_modules(model) if isinstance(module, Measuring))


def zeros(slots: Tree) -> Any:
    """What a step's measures start from."""
    return jax.tree.map(lambda slot: jnp.zeros(slot.shape, jnp.float32), slots)


def combine(slots: Tree, a: Tree, b: Tree) -> Any:
    """Measures of two microbatches as one."""
    return jax.tree.map(lambda slot, *both: slot.kind.combine(*both), slots, a, b)


def of_both_passes(slots: Tree, forward: Tree, backward: Tree) -> Any:
    """Each measure from the pass that takes it: `backward` are the gradients of the zeros."""

    def choose(slot: Slot, forward: jax.Array, backward: jax.Array) -> jax.Array:
        return backward if issubclass(slot.kind, LargestOfGradient) else forward

    return jax.tree.map(choose, slots, forward, backward)
