"""The model on prompts and on one token after the other, with its cache between the calls.

A prompt goes through the forward pass of training, so that its log-probabilities are the
trainer's; the entries (keys and values, say) that it makes on the way go to the cache. A token then
attends to the cache. The layers are taken apart once (`take_apart`): a slice of stacked weights
would be copied for each token. RoPE that goes by length (dynamic, longrope) goes by that of the
prompt, and then by that of the text so far: keys stay as they were turned.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from jaxtrain.decode.attention import on_cache, on_prompt
from jaxtrain.decode.cache import Cache, LayerCache, make_cache
from jaxtrain.models import rope
from jaxtrain.models.block import Block
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder, attention_choice
from jaxtrain.models.gqa import Attention, Entries
from jaxtrain.models.parameters import Split
from jaxtrain.types import Array

Tree = Mapping[str, Any]
M = TypeVar("M", bound=nnx.Module)


class Layers(NamedTuple):
    """Parameters with one tree for each layer in the place of stacked arrays."""

    top: Tree  # all but the blocks
    layers: tuple[Tree, ...]


class Prompt(NamedTuple):
    """What a prompt leaves: the logits after its last token, and the entries of each layer."""

    logits_BV: Float[Array, "B V"]
    entries: tuple[Entries, ...]


def take_apart(params: Tree, config: ModelConfig) -> Layers:
    """Stacked parameters layer by layer (a copy of the blocks)."""
    stacks = config.block_stacks
    top = {name: tree for name, tree in params.items() if name not in stacks}
    layers = [
        jax.tree.map(lambda w, row=row: w[row], params[name])
        for name, of_stack in stacks.items()
        for row in range(len(of_stack))
    ]
    return Layers(top, tuple(layers))


class Forward:
    """Prompt and token passes of one model structure; parameters are arguments.

    Args:
      model: `models.parameters.split` of the decoder, concrete or abstract.
    """

    def __init__(self, model: Split) -> None:
        self._bind = model.bind
        self._hollow = model.params  # leaves of any kind: only the structure is used
        decoder = self._model(model.params)
        self.config, self.compute_dtype = decoder.config, jnp.dtype(decoder.recipe.compute_dtype)
        self.entry_shapes = decoder.blocks.attention.entry_shapes
        if self.config.bidirectional:
            raise ValueError("bidirectional=True: an encoder does not write text")

    def prompt(
        self, params: Layers, inputs_BT: Int[Array, "B T"], length_B: Int[Array, "B"]
    ) -> tuple[Prompt, Float[Array, "B T D"]]:
        """Rows of prompts, filled up on the right from `length_B` on with any ids.

        Returns:
          What they leave, and what the head takes of every token.
        """
        model = self.model(params)
        positions_BT = jnp.broadcast_to(
            jnp.arange(inputs_BT.shape[1], dtype=jnp.int32)[None], inputs_BT.shape
        )
        lengths_BT = jnp.broadcast_to(length_B[:, None], inputs_BT.shape)
        rotations = rope.rotations(model.config, positions_BT, lengths_BT)
        implementation, _ = attention_choice(
            model.config, model.recipe, model.platform, isolated=False
        )
        entries: list[Entries] = []

        def mix(index: int, attention: Attention, x_BTD: jax.Array) -> jax.Array:
            window = model.config.layer_window(index)
            by = rotations.of(window)
            x_BTD, new = on_prompt(
                attention, x_BTD, by, window=window, implementation=implementation
            )
            entries.append(new)
            return x_BTD

        h_BTD = self._through(model, params.layers, model.embed(inputs_BT), mix)
        last_B1D = jnp.take_along_axis(h_BTD, (length_B - 1)[:, None, None], axis=1)
        return Prompt(model.logits(last_B1D)[:, 0], tuple(entries)), h_BTD

    def token(
        self,
        params: Layers,
        cache: Cache,
        id_B: Int[Array, "B"],
        length_B: Int[Array, "B"],
        rows_B: Int[Array, "B"],
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Logits after one more token in each row, and the cache with it.

        Args:
          length_B: tokens of each row, this one included: its position is length_B - 1.
          rows_B: the slot that a row writes to: its own number, or one out of range for a row at
            rest, which then changes nothing.
        """
        logits_BTV, _, cache = self.tokens(params, cache, id_B[:, None], length_B, rows_B)
        return logits_BTV[:, 0], cache

    def tokens(
        self,
        params: Layers,
        cache: Cache,
        ids_BT: Int[Array, "B T"],
        length_B: Int[Array, "B"],
        rows_B: Int[Array, "B"],
    ) -> tuple[Float[Array, "B T V"], Float[Array, "B T D"], Cache]:
        """Logits after each of T more tokens in each row, what the head took, and the cache.

        A later call may write over the last of them: fewer tokens count than there were. For that
        the cache must have had `num_ahead` of T - 1.

        Args:
          length_B: tokens of each row, these included.
          rows_B: as in `token`.
        """
        model = self.model(params)
        num = ids_BT.shape[1]
        positions_BT = length_B[:, None] - num + jnp.arange(num, dtype=jnp.int32)[None]
        rotations = rope.rotations(model.config, positions_BT, positions_BT + 1)
        new: list[LayerCache] = []

        def mix(index: int, attention: Attention, x_BTD: jax.Array) -> jax.Array:
            window = model.config.layer_window(index)
            x_BTD, layer = on_cache(
                attention, x_BTD, rotations.of(window), cache[index], rows_B, positions_BT,
                window=window,
            )  # fmt: skip
            new.append(layer)
            return x_BTD

        h_BTD = self._through(model, params.layers, model.embed(ids_BT), mix)
        return model.logits(h_BTD), h_BTD, tuple(new)

    def empty_cache(self, num_slots: int, max_len: int, num_ahead: int = 0) -> Cache:
        """For requests of up to `max_len` tokens, prompt and answer together."""
        windows = [self.config.layer_window(index) for index in range(self.config.num_layers)]
        return make_cache(
            windows, self.entry_shapes, num_slots, max_len, self.compute_dtype, num_ahead
        )

    def model(self, params: Layers) -> Decoder:
        """The model but for the weights of its blocks."""
        return self._model({**self._hollow, **params.top})

    def _model(self, params: Tree) -> Decoder:
        model = self._bind(params, {})
        assert isinstance(model, Decoder), type(model)
        return model

    def _through(
        self,
        model: Decoder,
        layers: Sequence[Tree],
        x_BTD: jax.Array,
        mix: Callable[[int, Attention, jax.Array], jax.Array],
    ) -> jax.Array:
        """The blocks one after the other with `mix` as their attention, then `Decoder.finish`."""
        for name, of_stack in model.config.block_stacks.items():
            stack = getattr(model, name)
            for index in of_stack:
                block: Block = one_of(stack, layers[index])
                x_BTD = block.around(x_BTD, functools.partial(mix, index, block.attention))
        return model.finish(x_BTD)


def one_of(stack: M, weights: Tree) -> M:
    """One of stacked modules, by its weights.

    What is no weight is left as it is: nothing is measured here.
    """
    structure, stacked = nnx.split(stack)
    state = [
        (
            path,
            variable.replace(_at(weights, path)) if isinstance(variable, nnx.Param) else variable,
        )
        for path, variable in nnx.to_flat_state(stacked)
    ]
    return nnx.merge(structure, nnx.from_flat_state(state))


def _at(tree: Any, path: Sequence[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
