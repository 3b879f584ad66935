"""A model whose hidden states and head are given: all that a loss asks of one."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax

from jaxtrain.precision.recipe import get_recipe


def unconstrained(x, letters):
    return x


@dataclasses.dataclass(frozen=True)
class GivenStates:
    """`rng_seen` collects the keys that `hidden` was called with."""

    h_BTD: Any
    w_DV: Any
    softcap: float | None = None
    recipe_name: str = "float32"
    constrain: Callable[[jax.Array, str], jax.Array] = unconstrained
    vocab_size: int = 64
    rng_seen: list = dataclasses.field(default_factory=list)

    @property
    def config(self):
        return SimpleNamespace(
            logit_softcap=self.softcap, vocab_size=self.vocab_size, trains_mtp=False
        )

    @property
    def recipe(self):
        return get_recipe(self.recipe_name)

    def hidden(self, inputs, positions, segment_ids, rng):
        assert inputs.shape == positions.shape == segment_ids.shape
        self.rng_seen.append(rng)
        return self.h_BTD

    def head_DV(self):
        return self.w_DV
