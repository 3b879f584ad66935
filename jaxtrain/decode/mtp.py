"""The model's own modules of multi-token prediction as a draft.

Depth i takes at place t what the depth before gives there (the first: what the model's head takes)
and token t + i, attends to its own cache of earlier places, and gives the logits of token
t + i + 1: see `models/mtp.py`. A turn of k proposed tokens, of a text of L tokens and the next one,
x_0, which the model has drawn:

    depth i ≤ k   goes over the last 1 + k places, L - 1 - k … L - 1, anew; at the last one it
                  has token x_(i-1) and proposes x_i
    beyond the last depth m, that one goes on from its own output: at place L - 1 + j it takes what
                  it gave at the place before, and x_(m+j-1), and proposes x_(m+j)

Of those 1 + k places the state keeps what the model's head took. A turn adds from 1 to 1 + k
places, so that whatever the last one computed from a token that the model did not keep, or from a
module's own output in the place of the model's, is computed again from the text itself before
anything builds on it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from jaxtrain.decode.attention import on_cache, on_prompt
from jaxtrain.decode.cache import Cache, make_cache
from jaxtrain.decode.draft import Draw, Pair, Proposer, Start, check_num_tokens
from jaxtrain.decode.forward import Forward, one_of
from jaxtrain.decode.slots import put_prompt
from jaxtrain.models import rope
from jaxtrain.models.decoder import Decoder, attention_choice
from jaxtrain.models.gqa import Attention, Entries
from jaxtrain.models.mtp import PredictionModule
from jaxtrain.models.parameters import Tree
from jaxtrain.types import Array


@dataclasses.dataclass(frozen=True)
class DraftModules:
    """The modules that the model has itself."""

    num_tokens: int

    def proposer(self, forward: Forward) -> Proposer:
        """Of the modules' passes.

        Raises:
          ValueError: where the model has none.
        """
        if not forward.config.num_mtp_layers:
            raise ValueError(
                "the model has no modules of multi-token prediction (num_mtp_layers=0)"
            )
        return _ModuleProposer(forward, check_num_tokens(self.num_tokens))

    def parameters(self, of_model: Tree) -> tuple[Tree, ...]:
        """Module by module: a slice of stacked weights would be copied for each token."""
        stacked = of_model["mtp"]
        num_modules = len(jax.tree.leaves(stacked)[0])

        @jax.jit
        def apart(stacked: Tree) -> tuple[Tree, ...]:
            return tuple(
                jax.tree.map(lambda w, depth=depth: w[depth], stacked)
                for depth in range(num_modules)
            )

        return apart(stacked)


class _State(NamedTuple):
    """W = 1 + num_tokens: the last places of each row."""

    cache: Cache  # of each module
    hidden_BWD: Array  # what the model's head took there
    ids_BW: Array


class _Prompt(NamedTuple):
    entries: tuple[Entries, ...]
    hidden_1WD: Array
    ids_1W: Array


class _ModuleProposer:
    def __init__(self, forward: Forward, num_tokens: int) -> None:
        self.forward, self.num_tokens = forward, num_tokens
        self.width = 1 + num_tokens
        self.num_modules = min(forward.config.num_mtp_layers, num_tokens)

    def empty(self, num_slots: int, max_len: int) -> _State:
        forward, shape = self.forward, (num_slots, self.width)
        cache = make_cache(
            [None] * self.num_modules,
            forward.entry_shapes,
            num_slots,
            max_len,
            forward.compute_dtype,
            self.num_tokens,
        )
        hidden_BWD = jnp.zeros((*shape, forward.config.d_model), forward.compute_dtype)
        return _State(cache, hidden_BWD, jnp.zeros(shape, jnp.int32))

    def prompt(self, params: Pair, row_1T: Array, length_1: Array, hidden_1TD: Array) -> _Prompt:
        """The modules at every place; at the last ones a turn does it again, with their tokens."""
        model = self.forward.model(params.model)
        implementation, _ = attention_choice(
            model.config, model.recipe, model.platform, isolated=False
        )
        entries: list[Entries] = []

        def attend(attention: Attention, x_1TD: Array, by: rope.Rotation) -> Array:
            x_1TD, new = on_prompt(attention, x_1TD, by, window=None, implementation=implementation)
            entries.append(new)
            return x_1TD

        places_1T = jnp.arange(row_1T.shape[1], dtype=jnp.int32)[None]
        lengths_1T = jnp.broadcast_to(length_1[:, None], row_1T.shape)
        h_1TD = hidden_1TD
        for depth in range(self.num_modules):
            next_1T = jnp.roll(row_1T, -1 - depth, axis=1)
            at = places_1T + depth + 1, lengths_1T
            h_1TD = _further(model, params.draft[depth], h_1TD, next_1T, *at, attend)
        last_1W = length_1[:, None] - self.width + jnp.arange(self.width, dtype=jnp.int32)[None]
        last_1W = jnp.maximum(last_1W, 0)  # a place before the first: anything, see `on_cache`
        return _Prompt(
            tuple(entries),
            jnp.take_along_axis(hidden_1TD, last_1W[:, :, None], axis=1),
            jnp.take_along_axis(row_1T, last_1W, axis=1),
        )

    def admitted(self, state: _State, prompt: _Prompt, slot: Array, length: Array) -> _State:
        return _State(
            put_prompt(state.cache, prompt.entries, slot, length),
            state.hidden_BWD.at[slot].set(prompt.hidden_1WD[0]),
            state.ids_BW.at[slot].set(prompt.ids_1W[0]),
        )

    def proposed(
        self, params: Pair, state: _State, start: Start, draw: Draw
    ) -> tuple[Array, _State]:
        """See the module's docstring."""
        model = self.forward.model(params.model)
        every_B = jnp.arange(len(start.id_B), dtype=jnp.int32)
        cache, h_BTD, seen_BV = list(state.cache), state.hidden_BWD, start.seen_BV
        ids_BT, id_B = state.ids_BW, start.id_B
        for number in range(self.num_tokens):
            seen_BV = seen_BV.at[every_B, id_B].set(True)
            ids_BT = jnp.concatenate([ids_BT, id_B[:, None]], axis=1)
            depth = min(number, self.num_modules - 1)
            num = self.width if number == depth else 1
            num_places_B = start.length_B + number - depth
            places_BT = num_places_B[:, None] - num + jnp.arange(num, dtype=jnp.int32)[None]

            def attend(
                attention: Attention, x_BTD: Array, by: rope.Rotation, depth=depth, at=places_BT
            ) -> Array:
                x_BTD, cache[depth] = on_cache(
                    attention, x_BTD, by, cache[depth], start.rows_B, at, window=None
                )
                return x_BTD

            # As in training, the positions are those of the tokens, not of the places.
            at = places_BT + depth + 1, places_BT + depth + 2
            h_BTD = _further(
                model, params.draft[depth], h_BTD[:, -num:], ids_BT[:, -num:], *at, attend
            )
            id_B = draw(model.logits(h_BTD[:, -1:])[:, 0], seen_BV, number + 1)
        ids_BT = jnp.concatenate([ids_BT, id_B[:, None]], axis=1)
        return ids_BT[:, self.width :], state._replace(cache=tuple(cache))

    def accepted(self, state: _State, ids_BT: Array, hidden_BTD: Array, num_B: Array) -> _State:
        """What stood at the last places before, and behind it what the model has kept."""
        last_BW = num_B[:, None] + jnp.arange(self.width, dtype=jnp.int32)[None]
        ids_BT = jnp.concatenate([state.ids_BW, ids_BT], axis=1)
        h_BTD = jnp.concatenate([state.hidden_BWD, hidden_BTD.astype(state.hidden_BWD.dtype)], 1)
        return state._replace(
            hidden_BWD=jnp.take_along_axis(h_BTD, last_BW[:, :, None], axis=1),
            ids_BW=jnp.take_along_axis(ids_BT, last_BW, axis=1),
        )


def _further(
    model: Decoder,
    weights: Tree,
    h_BTD: Float[Array, "B T D"],
    next_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
    lengths_BT: Int[Array, "B T"],
    attend: Callable[[Attention, Array, rope.Rotation], Array],
) -> Float[Array, "B T D"]:
    """What a module gives, by its weights; `attend` is in the place of its attention.

    Args:
      positions_BT: those of `next_BT`.
      lengths_BT: as of `rope.rotations`.
    """
    by = rope.rotations(model.config, positions_BT, lengths_BT).full
    module: PredictionModule = one_of(model.mtp, weights)

    def mix(x_BTD: Array) -> Array:
        return attend(module.block.attention, x_BTD, by)

    block = functools.partial(module.block.around, attention=mix)
    return module.around(h_BTD, model.embed(next_BT), block)
