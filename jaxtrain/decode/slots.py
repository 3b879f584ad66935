"""The slots on the device: their state, and the programs that fill, run and empty them.

One program draws for all slots at once and has a fixed shape; rows at rest draw too, and nothing
that they draw or write is kept. `engine.py` decides which request holds which slot.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain.decode.cache import Cache, write
from jaxtrain.decode.forward import Forward, Layers
from jaxtrain.decode.sampling import Settings, draw
from jaxtrain.models.gqa import Entries
from jaxtrain.types import Array

MAX_STOP_IDS = 16


class State(NamedTuple):
    """All slots, on the device."""

    cache: Cache
    logits_BV: Array  # of the next token
    seen_BV: Array  # ids in the prompt or the answer
    length_B: Array  # tokens so far
    num_new_B: Array  # of which drawn here
    max_new_B: Array
    is_active_B: Array
    settings: Settings
    key_B: Array  # key data of each request
    stop_ids_BX: Array
    draft: Any = None  # what a `draft.Proposer` keeps


class Drawn(NamedTuple):
    """What was drawn, each [B, tokens] or [B, tokens, num_top]; id -1: nothing at that place."""

    ids: Array
    logprobs: Array
    top_ids: Array
    top_logprobs: Array


class Admission(NamedTuple):
    """What a slot has to know of a request beside its prompt's entries."""

    length: Any
    max_new: Any
    seen_V: Any
    settings: Settings  # of one row
    key: Any
    stop_ids_X: Any


class Slots:
    """Programs on the state of `num_slots` requests of up to `max_len` tokens."""

    width = 1  #: tokens that one turn of the loop may draw for a slot

    def __init__(
        self, forward: Forward, *, max_len: int, num_slots: int, may_draw_V: np.ndarray, chunk: int
    ) -> None:
        self.forward, self.config = forward, forward.config
        self.max_len, self.num_slots, self.may_draw_V = max_len, num_slots, may_draw_V
        self.chunk = chunk
        self.empty = jax.jit(self._empty)
        self.prompt = jax.jit(self._prompt)
        self.admit = jax.jit(self._admitted, donate_argnums=0)
        self.retire = jax.jit(self._retired, donate_argnums=0)
        self.run = jax.jit(self._drawn, donate_argnums=1, static_argnames=("filters", "num_top"))

    def _empty(self) -> State:
        b, v = self.num_slots, self.config.vocab_size
        key = jax.random.key_data(jax.random.key(0))
        zeros, ones = jnp.zeros(b, jnp.int32), jnp.ones(b, jnp.float32)
        return State(
            self.forward.empty_cache(b, self.max_len, self.width - 1),
            jnp.zeros((b, v), jnp.float32),
            jnp.zeros((b, v), bool),
            zeros,
            zeros,
            zeros,
            jnp.zeros(b, bool),
            Settings(ones, zeros + v, ones, ones * 0, ones),
            jnp.zeros((b, *key.shape), key.dtype),
            jnp.full((b, MAX_STOP_IDS), -1, jnp.int32),
        )

    def _prompt(self, params: Layers, row_1T: Array, length_1: Array) -> Any:
        """What `_admitted` takes of a prompt."""
        return self.forward.prompt(params, row_1T, length_1)[0]

    def _admitted(self, state: State, slot: Array, prompt: Any, request: Admission) -> State:
        """A request's prompt, run as one row, into a slot."""
        length, slot = jnp.asarray(request.length, jnp.int32), jnp.asarray(slot, jnp.int32)
        return State(
            put_prompt(state.cache, prompt.entries, slot, length),
            state.logits_BV.at[slot].set(prompt.logits_BV[0]),
            state.seen_BV.at[slot].set(request.seen_V),
            state.length_B.at[slot].set(length),
            state.num_new_B.at[slot].set(0),
            state.max_new_B.at[slot].set(request.max_new),
            state.is_active_B.at[slot].set(True),
            jax.tree.map(lambda old, new: old.at[slot].set(new), state.settings, request.settings),
            state.key_B.at[slot].set(request.key),
            state.stop_ids_BX.at[slot].set(request.stop_ids_X),
        )

    def _drawn(
        self, params: Layers, state: State, others_wait: Array, *, filters: bool, num_top: int
    ) -> tuple[State, Drawn]:
        """What `chunk` turns draw; fewer turns where others wait and a slot gets free."""
        shape = (self.num_slots, self.chunk, self.width)
        drawn = Drawn(
            jnp.full(shape, -1, jnp.int32),
            jnp.zeros(shape, jnp.float32),
            jnp.zeros((*shape, num_top), jnp.int32),
            jnp.zeros((*shape, num_top), jnp.float32),
        )
        num_active = jnp.sum(state.is_active_B)

        def goes_on(carry):
            turn, state, _ = carry
            some_left = num_active > jnp.sum(state.is_active_B)
            return (turn < self.chunk) & state.is_active_B.any() & ~(others_wait & some_left)

        def body(carry):
            turn, state, drawn = carry
            state, new = self._turn(params, state, filters, num_top)
            drawn = jax.tree.map(lambda all_, some: all_.at[:, turn].set(some), drawn, new)
            return turn + 1, state, drawn

        _, state, drawn = jax.lax.while_loop(goes_on, body, (jnp.int32(0), state, drawn))
        num_tokens = self.chunk * self.width
        return state, jax.tree.map(
            lambda x: x.reshape(self.num_slots, num_tokens, *x.shape[3:]), drawn
        )

    def _turn(self, params: Any, state: State, filters: bool, num_top: int) -> tuple[State, Drawn]:
        """One turn of the loop; `Drawn` of `width` tokens."""
        id_B = self._draw(state.logits_BV, state.seen_BV, state.num_new_B, state, filters)
        state, new = self._with_token(state, id_B, state.is_active_B, num_top)
        logits_BV, cache = self.forward.token(
            params, state.cache, id_B, state.length_B, self._rows(state.is_active_B)
        )
        state = state._replace(cache=cache, logits_BV=logits_BV)
        return state, jax.tree.map(lambda x: x[:, None], new)

    def _draw(
        self, logits_BV: Array, seen_BV: Array, num_new_B: Array, state: State, filters: bool
    ) -> Array:
        """The id that each request draws as its token number `num_new_B`, with its own key."""
        keys_B = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(state.key_B), num_new_B)
        may_draw_V = jnp.asarray(self.may_draw_V)
        return draw(
            logits_BV, seen_BV, state.settings, keys_B, may_draw_V=may_draw_V, filters=filters
        )

    def _with_token(
        self, state: State, id_B: Array, takes_B: Array, num_top: int
    ) -> tuple[State, Drawn]:
        """The state once the rows `takes_B` have drawn `id_B`, but for cache and logits."""
        logprobs_BV = jax.nn.log_softmax(state.logits_BV, axis=-1)
        top_logprobs, top_ids = jax.lax.top_k(
            jnp.where(self.may_draw_V[None], logprobs_BV, -jnp.inf), num_top
        )
        new = Drawn(
            jnp.where(takes_B, id_B, -1),
            jnp.take_along_axis(logprobs_BV, id_B[:, None], axis=-1)[:, 0],
            top_ids.astype(jnp.int32),
            top_logprobs,
        )
        one = takes_B.astype(jnp.int32)
        is_stop_B = (id_B[:, None] == state.stop_ids_BX).any(axis=-1)
        num_new_B = state.num_new_B + one
        ends_B = takes_B & (is_stop_B | (num_new_B >= state.max_new_B))
        state = state._replace(
            seen_BV=state.seen_BV.at[self._rows(takes_B), id_B].set(True, mode="drop"),
            length_B=state.length_B + one,
            num_new_B=num_new_B,
            is_active_B=state.is_active_B & ~ends_B,
        )
        return state, new

    def _rows(self, writes_B: Array) -> Array:
        """The row of each slot that writes; one out of range for the others: not written."""
        row_B = jnp.arange(self.num_slots, dtype=jnp.int32)
        return jnp.where(writes_B, row_B, self.num_slots)

    def count_drafted(self, ids: np.ndarray, is_active: np.ndarray) -> tuple[int, int]:
        """(accepted, proposed) tokens of a draft in a run.

        Args:
          ids: that it has drawn, on the host.
          is_active: which rows go on.
        """
        del ids, is_active
        return 0, 0

    def _retired(self, state: State, slot: Array) -> State:
        return state._replace(is_active_B=state.is_active_B.at[slot].set(False))


def put_prompt(cache: Cache, entries: Sequence[Entries], slot: Array, length: Array) -> Cache:
    """The cache with the entries of a prompt, layer by layer, in a slot."""
    positions_1T = jnp.arange(entries[0][0].shape[1], dtype=jnp.int32)[None]

    def put(entry_BKSH: Array, new_1TKH: Array) -> Array:
        # Emptied first: masked weights are 0, and 0 · NaN of an earlier request is NaN.
        entry_BKSH = entry_BKSH.at[slot].set(0)
        return write(entry_BKSH, new_1TKH, slot[None], positions_1T, length[None])

    return tuple(
        tuple(put(held, new) for held, new in zip(layer, of_layer, strict=True))
        for layer, of_layer in zip(cache, entries, strict=True)
    )
