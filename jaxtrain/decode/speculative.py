"""Speculative decoding: a draft proposes tokens, the model looks at all of them in one pass.

One turn, with num_tokens = k:

    x_0      drawn from the model's logits, as ever
    x_1 … x_k   proposed: the draft goes on from x_0, k passes of it
    l_0 … l_k   the model's logits after each of them, one pass of k + 1 tokens
    x_j is kept while it is what the model itself draws from l_(j-1); the next turn goes on from
    the logits behind the last one kept

So every token is the model's own draw from its own logits, with its own key: what comes out is what
plain decoding gives, greedy or not, whatever the draft. (Leviathan et al., arXiv 2211.17192, accept
by a random number instead, which keeps the distribution but not the tokens.) The draft draws with
the same keys. Their random numbers are those of `jax.random.categorical`, one for each id, so two
distributions that are alike draw alike: Gumbel coupling, Daliri et al., arXiv 2408.07978.

What the caches hold of tokens that were not kept is written over before it is seen (`cache.py`).
Logits of a pass of k + 1 tokens round otherwise than those of one: where two ids are that close,
one may be drawn for the other.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtrain.decode.cache import Cache
from jaxtrain.decode.forward import Forward, Layers, Prompt
from jaxtrain.decode.slots import Admission, Drawn, Slots, State, put_prompt
from jaxtrain.models.parameters import Split, Tree
from jaxtrain.types import Array


class Draft(NamedTuple):
    """A smaller model whose ids mean the same."""

    model: Split
    params: Tree
    num_tokens: int  # proposed in one turn


class Pair(NamedTuple):
    """Something of the model and of its draft: parameters, or a prompt."""

    model: Any
    draft: Any


class DraftState(NamedTuple):
    """What all slots hold of the draft."""

    cache: Cache
    num_proposed: Array
    num_accepted: Array


class SpeculativeSlots(Slots):
    """`Slots` whose turns draw up to 1 + num_tokens ids; parameters and prompts are a `Pair`."""

    def __init__(self, forward: Forward, draft: Forward, num_tokens: int, **shape: Any) -> None:
        if num_tokens < 1:
            raise ValueError(f"the draft must propose at least 1 token, not {num_tokens}")
        self.draft, self.width = draft, 1 + num_tokens
        super().__init__(forward, **shape)

    def _empty(self) -> State:
        cache = self.draft.empty_cache(self.num_slots, self.max_len, self.width - 1)
        zero = jnp.zeros((), jnp.int32)
        return super()._empty()._replace(draft=DraftState(cache, zero, zero))

    def _prompt(self, params: Any, row_1T: Array, length_1: Array) -> Pair:
        prompts = (
            forward.prompt(each, row_1T, length_1)
            for forward, each in zip((self.forward, self.draft), params, strict=True)
        )
        return Pair(*prompts)

    def _admitted(self, state: State, slot: Array, prompt: Any, request: Admission) -> State:
        of_draft: Prompt = prompt.draft
        slot, length = jnp.asarray(slot, jnp.int32), jnp.asarray(request.length, jnp.int32)
        cache = put_prompt(state.draft.cache, of_draft, slot, length)
        draft = state.draft._replace(cache=cache)
        return super()._admitted(state, slot, prompt.model, request)._replace(draft=draft)

    def _turn(self, params: Any, state: State, filters: bool, num_top: int) -> tuple[State, Drawn]:
        ids_BT, draft_cache = self._proposed(params.draft, state, filters)
        logits_BTV, cache = self.forward.tokens(
            params.model,
            state.cache,
            ids_BT,
            state.length_B + self.width,
            self._rows(state.is_active_B),
        )
        state = state._replace(cache=cache, draft=state.draft._replace(cache=draft_cache))
        return self._accepted(state, ids_BT, logits_BTV, filters, num_top)

    def _proposed(self, params: Layers, state: State, filters: bool) -> tuple[Array, Cache]:
        """[B, 1 + num_tokens]: what the model draws next, and how the draft goes on from there.

        Also of the last one the draft has an entry: it may be kept.
        """
        rows_B = self._rows(state.is_active_B)
        every_B = jnp.arange(self.num_slots, dtype=jnp.int32)

        def one(carry: Any, number: Array) -> tuple[Any, Array]:
            id_B, seen_BV, cache = carry
            seen_BV = seen_BV.at[every_B, id_B].set(True)
            length_B = state.length_B + number + 1
            logits_BV, cache = self.draft.token(params, cache, id_B, length_B, rows_B)
            num_new_B = state.num_new_B + number + 1
            next_B = self._draw(self._fitted(logits_BV), seen_BV, num_new_B, state, filters)
            return (next_B, seen_BV, cache), id_B

        id_B = self._draw(state.logits_BV, state.seen_BV, state.num_new_B, state, filters)
        carry = id_B, state.seen_BV, state.draft.cache
        (_, _, cache), ids_TB = jax.lax.scan(one, carry, jnp.arange(self.width, dtype=jnp.int32))
        return ids_TB.T, cache

    def _fitted(self, logits_BV: Array) -> Array:
        """The draft's logits of the model's ids: their paddings of the vocabulary may differ."""
        missing = max(0, self.config.vocab_size - logits_BV.shape[-1])
        logits_BV = jnp.pad(logits_BV, ((0, 0), (0, missing)), constant_values=-jnp.inf)
        return logits_BV[:, : self.config.vocab_size]

    def _accepted(
        self, state: State, ids_BT: Array, logits_BTV: Array, filters: bool, num_top: int
    ) -> tuple[State, Drawn]:
        """The state with the ids that the model draws itself, up to the first one it does not."""

        def one(carry: Any, item: Any) -> tuple[Any, Drawn]:
            state, agrees_B = carry
            number, proposed_B, after_BV = item
            id_B = self._draw(state.logits_BV, state.seen_BV, state.num_new_B, state, filters)
            agrees_B &= id_B == proposed_B
            takes_B = agrees_B & state.is_active_B
            is_draft = (number > 0).astype(jnp.int32)  # the first is the model's own
            draft = state.draft._replace(
                num_proposed=state.draft.num_proposed
                + is_draft * jnp.sum(state.is_active_B, dtype=jnp.int32),
                num_accepted=state.draft.num_accepted
                + is_draft * jnp.sum(takes_B, dtype=jnp.int32),
            )
            state, new = self._with_token(state, proposed_B, takes_B, num_top)
            logits_BV = jnp.where(takes_B[:, None], after_BV, state.logits_BV)
            return (state._replace(logits_BV=logits_BV, draft=draft), agrees_B), new

        items = (
            jnp.arange(self.width, dtype=jnp.int32),
            ids_BT.T,
            jnp.moveaxis(logits_BTV, 1, 0),
        )
        start = state, jnp.ones(self.num_slots, bool)
        (state, _), new = jax.lax.scan(one, start, items)
        return state, jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), new)
