"""What proposes tokens in speculative decoding: the interface, and a smaller model behind it.

A `Draft` is what a user gives the engine. Its `Proposer` is what the compiled loop calls; between
its calls it keeps a state of its own, whose rows are the slots. The other kind of draft, the
model's own modules of multi-token prediction, is in `mtp.py`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxtrain.decode.cache import Cache
from jaxtrain.decode.forward import Forward, take_apart
from jaxtrain.decode.slots import put_prompt
from jaxtrain.models.parameters import Split, Tree
from jaxtrain.types import Array

#: Tokens proposed in one turn, at most. Each is a pass of its own in the compiled program, and all
#: of those before it have to be right for one to be kept.
MAX_NUM_TOKENS = 16


class Pair(NamedTuple):
    """Something of the model and of its draft: parameters, or a prompt."""

    model: Any
    draft: Any


class Start(NamedTuple):
    """Where a turn starts, in each row."""

    id_B: Array  # drawn by the model itself
    seen_BV: Array  # ids before it
    length_B: Array  # tokens before it
    rows_B: Array  # as of `Forward.token`


#: (the draft's logits, ids seen so far, how many tokens behind the first) -> the ids proposed
Draw = Callable[[Array, Array, Array | int], Array]


class Proposer(Protocol):
    """Programs of a draft on its state; parameters are a `Pair`."""

    def empty(self, num_slots: int, max_len: int) -> Any:
        """The state without requests."""
        ...

    def prompt(self, params: Pair, row_1T: Array, length_1: Array, hidden_1TD: Array) -> Any:
        """What `admitted` takes of a prompt; `hidden_1TD` is what the model's head takes of it."""
        ...

    def admitted(self, state: Any, prompt: Any, slot: Array, length: Array) -> Any:
        """The state with a prompt in a slot."""
        ...

    def proposed(self, params: Pair, state: Any, start: Start, draw: Draw) -> tuple[Array, Any]:
        """[B, 1 + num_tokens]: the start's ids, and those drawn to follow them; and the state."""
        ...

    def accepted(self, state: Any, ids_BT: Array, hidden_BTD: Array, num_B: Array) -> Any:
        """The state once the model has looked at all of `ids_BT` and kept the first `num_B`."""
        ...


class Draft(Protocol):
    """What proposes tokens of a model."""

    def proposer(self, forward: Forward) -> Proposer:
        """Its programs beside those of the model."""
        ...

    def parameters(self, of_model: Tree) -> Any:
        """Its own parameters as its programs take them, given the model's."""
        ...

    @property
    def num_tokens(self) -> int:
        """Proposed in one turn."""
        ...


class DraftModel(NamedTuple):
    """A smaller model whose ids mean the same."""

    model: Split
    params: Tree
    num_tokens: int

    def proposer(self, forward: Forward) -> Proposer:
        """Of its own passes."""
        return _ModelProposer(
            Forward(self.model), forward.config.vocab_size, check_num_tokens(self.num_tokens)
        )

    def parameters(self, of_model: Tree) -> Any:
        """Its layers."""
        del of_model
        config = Forward(self.model).config
        return jax.jit(functools.partial(take_apart, config=config))(self.params)


def check_num_tokens(num_tokens: int) -> int:
    """The number of tokens that a draft proposes in one turn.

    Raises:
      ValueError: where it is none, or more than `MAX_NUM_TOKENS`.
    """
    if not 1 <= num_tokens <= MAX_NUM_TOKENS:
        raise ValueError(
            f"the draft must propose from 1 to {MAX_NUM_TOKENS} tokens in a turn, not {num_tokens}"
        )
    return num_tokens


class _ModelProposer:
    """The state is the draft's cache."""

    def __init__(self, forward: Forward, vocab_size: int, num_tokens: int) -> None:
        self.forward, self.vocab_size, self.num_tokens = forward, vocab_size, num_tokens

    def empty(self, num_slots: int, max_len: int) -> Cache:
        return self.forward.empty_cache(num_slots, max_len, self.num_tokens)

    def prompt(self, params: Pair, row_1T: Array, length_1: Array, hidden_1TD: Array) -> Any:
        del hidden_1TD
        return self.forward.prompt(params.draft, row_1T, length_1)[0].entries

    def admitted(self, state: Cache, prompt: Any, slot: Array, length: Array) -> Cache:
        return put_prompt(state, prompt, slot, length)

    def proposed(self, params: Pair, state: Cache, start: Start, draw: Draw) -> tuple[Array, Cache]:
        """One pass for each; also of the last one the cache has an entry: it may be kept."""
        every_B = jnp.arange(len(start.id_B), dtype=jnp.int32)

        def one(carry: Any, number: Array) -> tuple[Any, Array]:
            id_B, seen_BV, cache = carry
            seen_BV = seen_BV.at[every_B, id_B].set(True)
            length_B = start.length_B + number + 1
            logits_BV, cache = self.forward.token(params.draft, cache, id_B, length_B, start.rows_B)
            return (draw(self._fitted(logits_BV), seen_BV, number + 1), seen_BV, cache), id_B

        numbers = jnp.arange(1 + self.num_tokens, dtype=jnp.int32)
        (_, _, cache), ids_TB = jax.lax.scan(one, (start.id_B, start.seen_BV, state), numbers)
        return ids_TB.T, cache

    def accepted(self, state: Cache, ids_BT: Array, hidden_BTD: Array, num_B: Array) -> Cache:
        """What was not kept is written over."""
        del ids_BT, hidden_BTD, num_B
        return state

    def _fitted(self, logits_BV: Array) -> Array:
        """The draft's logits of the model's ids: their paddings of the vocabulary may differ."""
        missing = max(0, self.vocab_size - logits_BV.shape[-1])
        logits_BV = jnp.pad(logits_BV, ((0, 0), (0, missing)), constant_values=-jnp.inf)
        return logits_BV[:, : self.vocab_size]
