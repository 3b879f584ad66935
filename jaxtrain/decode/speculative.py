"""Speculative decoding: a draft proposes tokens, the model looks at all of them in one pass.

One turn, with num_tokens = k:

    x_0      drawn from the model's logits, as ever
    x_1 … x_k   proposed by the draft, which goes on from x_0 (`draft.py`, `mtp.py`)
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

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain.decode.draft import Pair, Proposer, Start
from jaxtrain.decode.forward import Forward
from jaxtrain.decode.slots import Admission, Drawn, Slots, State
from jaxtrain.types import Array


class SpeculativeSlots(Slots):
    """`Slots` whose turns draw up to 1 + num_tokens ids; parameters and prompts are a `Pair`."""

    def __init__(self, forward: Forward, proposer: Proposer, num_tokens: int, **shape: Any) -> None:
        self.proposer, self.width = proposer, 1 + num_tokens
        super().__init__(forward, **shape)

    def _empty(self) -> State:
        return super()._empty()._replace(draft=self.proposer.empty(self.num_slots, self.max_len))

    def _prompt(self, params: Pair, row_1T: Array, length_1: Array) -> Pair:
        prompt, hidden_1TD = self.forward.prompt(params.model, row_1T, length_1)
        return Pair(prompt, self.proposer.prompt(params, row_1T, length_1, hidden_1TD))

    def _admitted(self, state: State, slot: Array, prompt: Pair, request: Admission) -> State:
        slot, length = jnp.asarray(slot, jnp.int32), jnp.asarray(request.length, jnp.int32)
        draft = self.proposer.admitted(state.draft, prompt.draft, slot, length)
        return super()._admitted(state, slot, prompt.model, request)._replace(draft=draft)

    def _turn(self, params: Pair, state: State, filters: bool, num_top: int) -> tuple[State, Drawn]:
        rows_B = self._rows(state.is_active_B)
        draw = functools.partial(self._draw, state=state, filters=filters)
        id_B = draw(state.logits_BV, state.seen_BV, state.num_new_B)
        ids_BT, draft = self.proposer.proposed(
            params,
            state.draft,
            Start(id_B, state.seen_BV, state.length_B, rows_B),
            lambda logits_BV, seen_BV, number: draw(logits_BV, seen_BV, state.num_new_B + number),
        )
        logits_BTV, hidden_BTD, cache = self.forward.tokens(
            params.model, state.cache, ids_BT, state.length_B + self.width, rows_B
        )
        after, drawn = self._kept(state._replace(cache=cache), ids_BT, logits_BTV, filters, num_top)
        num_kept_B = after.num_new_B - state.num_new_B
        draft = self.proposer.accepted(draft, ids_BT, hidden_BTD, num_kept_B)
        return after._replace(draft=draft), drawn

    def _kept(
        self, state: State, ids_BT: Array, logits_BTV: Array, filters: bool, num_top: int
    ) -> tuple[State, Drawn]:
        """The state with the ids that the model draws itself, up to the first one it does not."""

        def one(carry: Any, item: Any) -> tuple[Any, Drawn]:
            state, agrees_B = carry
            proposed_B, after_BV = item
            id_B = self._draw(state.logits_BV, state.seen_BV, state.num_new_B, state, filters)
            agrees_B &= id_B == proposed_B
            takes_B = agrees_B & state.is_active_B
            state, new = self._with_token(state, proposed_B, takes_B, num_top)
            logits_BV = jnp.where(takes_B[:, None], after_BV, state.logits_BV)
            return (state._replace(logits_BV=logits_BV), agrees_B), new

        start = state, jnp.ones(self.num_slots, bool)
        (state, _), new = jax.lax.scan(one, start, (ids_BT.T, jnp.moveaxis(logits_BTV, 1, 0)))
        return state, jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), new)

    def count_drafted(self, ids: np.ndarray, is_active: np.ndarray) -> tuple[int, int]:
        """See `Slots.count_drafted`; what stood behind the end of an answer is not counted."""
        taken = (ids.reshape(self.num_slots, self.chunk, self.width) >= 0).sum(axis=-1)
        accepted = np.maximum(taken - 1, 0)
        last = np.maximum((taken > 0).sum(axis=-1, keepdims=True) - 1, 0)  # turn of each row
        proposed = np.where(taken > 0, self.width - 1, 0)
        ended = np.where(is_active[:, None], proposed, accepted)
        np.put_along_axis(proposed, last, np.take_along_axis(ended, last, axis=1), axis=1)
        return int(accepted.sum()), int(proposed.sum())
