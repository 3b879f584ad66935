"""The model on prompts and on one token after the other, with its cache between the calls.

A prompt goes through the forward pass of training, so that its log-probabilities are the
trainer's; the keys and values that it makes on the way go to the cache. A token then attends to the
cache. The layers are taken apart once (`take_apart`): a slice of stacked weights would be copied
for each token.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from jaxtrain.decode import cache as cache_lib
from jaxtrain.decode.cache import Cache, LayerCache
from jaxtrain.models import rope
from jaxtrain.models.attention import attend
from jaxtrain.models.decoder import Decoder, attention_choice
from jaxtrain.models.layers import Attention, Block
from jaxtrain.models.parameters import Split
from jaxtrain.types import Array

Tree = Mapping[str, Any]
_BLOCKS = "blocks"


class Layers(NamedTuple):
    """Parameters with one tree for each layer in the place of stacked arrays."""

    top: Tree  # all but the blocks
    layers: tuple[Tree, ...]


class Prompt(NamedTuple):
    """What a prompt leaves: the logits after its last token, and keys and values by layer."""

    logits_BV: Float[Array, "B V"]
    entries: tuple[tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]], ...]


def take_apart(params: Tree, num_layers: int) -> Layers:
    """Stacked parameters layer by layer (a copy of the blocks)."""
    top = {name: tree for name, tree in params.items() if name != _BLOCKS}
    layers = [jax.tree.map(lambda w, i=i: w[i], params[_BLOCKS]) for i in range(num_layers)]
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
        if self.config.bidirectional:
            raise ValueError("bidirectional=True: an encoder does not write text")

    def prompt(
        self, params: Layers, inputs_BT: Int[Array, "B T"], length_B: Int[Array, "B"]
    ) -> Prompt:
        """Rows of prompts, filled up on the right from `length_B` on with any ids."""
        model = self._model({**self._hollow, **params.top})
        positions_BT = jnp.broadcast_to(
            jnp.arange(inputs_BT.shape[1], dtype=jnp.int32)[None], inputs_BT.shape
        )
        lengths_BT = jnp.broadcast_to(length_B[:, None], inputs_BT.shape)
        rotations = rope.rotations(model.config, positions_BT, lengths_BT)
        implementation, _ = attention_choice(
            model.config, model.recipe, model.platform, isolated=False
        )
        entries: list[tuple[jax.Array, jax.Array]] = []

        def mix(index: int, attention: Attention, x_BTD: jax.Array) -> jax.Array:
            window = model.config.layer_window(index)
            q_BTNH, k_BTKH, v_BTKH = attention.heads(x_BTD, rotations.of(window))
            entries.append((k_BTKH, v_BTKH))
            out_BTNH = attend(
                q_BTNH,
                k_BTKH,
                v_BTKH,
                segment_ids_BT=None,
                causal=True,
                window=window,
                softcap=model.config.attention_softcap,
                scale=attention.scale,
                implementation=implementation,
                block=model.config.attention_block,
            )
            return attention.output(out_BTNH)

        h_BTD = self._through(model, params.layers, model.embed(inputs_BT), mix)
        last_B1D = jnp.take_along_axis(h_BTD, (length_B - 1)[:, None, None], axis=1)
        return Prompt(model.logits(last_B1D)[:, 0], tuple(entries))

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
        model = self._model({**self._hollow, **params.top})
        position_B1 = (length_B - 1)[:, None]
        rotations = rope.rotations(model.config, position_B1, length_B[:, None])
        new: list[LayerCache] = []

        def mix(index: int, attention: Attention, x_B1D: jax.Array) -> jax.Array:
            window = model.config.layer_window(index)
            q_B1NH, k_B1KH, v_B1KH = attention.heads(x_B1D, rotations.of(window))
            put = functools.partial(
                cache_lib.write, slot_P=rows_B, positions_PT=position_B1, length_P=length_B
            )
            layer = LayerCache(
                model.constrain(put(cache[index].k_BKSH, k_B1KH), "BKSH"),
                model.constrain(put(cache[index].v_BKSH, v_B1KH), "BKSH"),
            )
            new.append(layer)
            out_BNH = cache_lib.attend(
                q_B1NH[:, 0],
                layer,
                cache_lib.visible(layer.k_BKSH.shape[2], length_B, window),
                scale=attention.scale,
                softcap=model.config.attention_softcap,
            )
            return attention.output(out_BNH[:, None])

        h_B1D = self._through(model, params.layers, model.embed(id_B[:, None]), mix)
        return model.logits(h_B1D)[:, 0], tuple(new)

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
        """The blocks one after the other with `mix` as their attention, then the final norm."""
        structure, stacked = nnx.split(model.blocks)
        variables = nnx.to_flat_state(stacked)
        for index, layer in enumerate(layers):
            state = [(path, variable.replace(_at(layer, path))) for path, variable in variables]
            block = nnx.merge(structure, nnx.from_flat_state(state))
            assert isinstance(block, Block), type(block)
            x_BTD = block.around(x_BTD, functools.partial(mix, index, block.attention))
        return model.final_norm(x_BTD)


def _at(tree: Any, path: Sequence[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
