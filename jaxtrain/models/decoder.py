"""The decoder: embedding, stacked blocks, final norm, head. With `bidirectional`, an encoder.

The blocks' parameters are stacked along a leading "L" and applied by a plain `jax.lax.scan`, so
that compile time and program size do not grow with depth; `remat` decides by name what the
backward pass recomputes. The losses call `hidden` and `head_DV` and make logits in pieces; only
evaluation of small things calls the model itself.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import checkpoint_policies
from jaxtyping import Float, Int, Key

from jaxtrain.measured import Measured, asked
from jaxtrain.models import low_precision, rope
from jaxtrain.models.attention import choose
from jaxtrain.models.block import Block
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.encoder import MaskedLMHead, PositionEmbedding
from jaxtrain.models.layers import Constrain, dropout, make_norm, weight
from jaxtrain.models.mtp import DepthLosses, PredictionModule
from jaxtrain.precision.recipe import Recipe

_MAX_UNROLLED_ON_CPU = 8
M = TypeVar("M", bound=nnx.Module)


def _unconstrained(x: jax.Array, letters: str) -> jax.Array:
    return x


class Decoder(nnx.Module):
    """A transformer over token ids.

    Args:
      rngs: the source of the initial weights; each layer draws from a key of its own.
      recipe: number formats and the matmul (see `precision.recipe`).
      constrain: called on activations with their dimension letters to pin them to a mesh.
      isolated: False: batches never hold documents to keep apart, so segment ids are ignored, which
        more attention implementations can do (filler at the end of a row is after all it follows).
      platform: what the model runs on ("cpu", "gpu"), where that is not this process's default
        backend (compiling ahead of time for other hardware). It settles what "auto" means.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        recipe: Recipe,
        constrain: Constrain = _unconstrained,
        isolated: bool = True,
        platform: str | None = None,
    ) -> None:
        self.config, self.recipe, self.constrain = config, recipe, constrain
        self.isolated = isolated
        self.platform = platform or jax.default_backend()
        v, d = config.num_vocab_rows, config.d_model
        # A look-up adds up one row; as a head, the same matrix adds up d_model products.
        fan_in = d if config.tied_head or config.scale_embedding else 1
        self.embedding_VD = weight(rngs, (v, d), "VD", fan_in=fan_in)
        block = functools.partial(Block, config, recipe=recipe, constrain=constrain)
        stacks = config.block_stacks
        if "dense_blocks" in stacks:
            dense = functools.partial(block, dense=True)
            self.dense_blocks: Block = _stacked(dense, rngs.params(), len(stacks["dense_blocks"]))
        self.blocks: Block = _stacked(block, rngs.params(), len(stacks["blocks"]))
        if config.norm_placement != "residual":
            self.final_norm = make_norm(config, d)
        if config.num_positions is not None:
            self.positions = PositionEmbedding(config, rngs=rngs, fan_in=fan_in)
        if config.masked_lm_head:
            self.masked_lm = MaskedLMHead(config, rngs=rngs, recipe=recipe)
        if config.scalar_head:
            self.w_score_D = weight(rngs, (d,), "D", fan_in=d)
        elif not config.tied_head:
            self.w_head_DV = weight(rngs, (d, v), "DV", fan_in=d)
        if config.num_mtp_layers:
            unquantized = dataclasses.replace(recipe, quantization=None)
            module = functools.partial(
                PredictionModule, config, recipe=unquantized, constrain=constrain
            )
            self.mtp: PredictionModule = _stacked(module, rngs.params(), config.num_mtp_layers)
            self.mtp_losses = DepthLosses(config)

    def hidden(
        self,
        inputs_BT: Int[jax.Array, "B T"],
        positions_BT: Int[jax.Array, "B T"],
        segment_ids_BT: Int[jax.Array, "B T"] | None = None,
        rng: Key[jax.Array, ""] | None = None,
        perturb: Callable[[jax.Array], jax.Array] | None = None,
    ) -> Float[jax.Array, "B T _"]:
        """What the head multiplies (see `finish`), in compute dtype.

        Args:
          inputs_BT: token ids. An id outside the vocabulary makes its row NaN rather than another
            token's row.
          segment_ids_BT: documents see only themselves, filler (0) sees nothing; None: each row is
            one document, which more attention implementations can do.
          rng: key of this call's dropout; None: no dropout.
          perturb: what to make of the embeddings [B, T, D] before anything else sees them.
        """
        is_token_BT = None if segment_ids_BT is None else segment_ids_BT > 0
        if not self.isolated:
            segment_ids_BT = None
        x_BTD = self.embed(inputs_BT)
        if perturb is not None:
            x_BTD = perturb(x_BTD)
        if self.config.num_positions is not None:
            x_BTD = self.positions(x_BTD, positions_BT)
            rng, embedding_rng = (None, None) if rng is None else jax.random.split(rng)
            x_BTD = dropout(x_BTD, self.config.dropout, embedding_rng)
        x_BTD = self.constrain(x_BTD, "BTD")
        rotations = rope.rotations(self.config, positions_BT)
        x_BTD = self._apply_blocks(x_BTD, rotations, segment_ids_BT, rng, is_token_BT)
        return self.finish(x_BTD)

    def finish(self, x_BTD: Float[jax.Array, "B T D"]) -> Float[jax.Array, "B T _"]:
        """From the last block to the head: the final norm, or what an encoder has there."""
        if self.config.norm_placement != "residual":
            x_BTD = self.final_norm(x_BTD)
        return self.masked_lm(x_BTD) if self.config.masked_lm_head else x_BTD

    def predict_further(
        self,
        depth: int,
        h_BTD: Float[jax.Array, "B T D"],
        next_BT: Int[jax.Array, "B T"],
        positions_BT: Int[jax.Array, "B T"],
        segment_ids_BT: Int[jax.Array, "B T"] | None = None,
        rng: Key[jax.Array, ""] | None = None,
    ) -> Float[jax.Array, "B T D"]:
        """What the head multiplies to predict one token further than `h_BTD` does.

        Args:
          depth: which module, from 0.
          h_BTD: `hidden`, or what the module before has given.
          next_BT: the token that `h_BTD` predicts at each place; any id where there is none.
          positions_BT: those of `next_BT`; RoPE sees differences alone.
        """
        is_token_BT = None if segment_ids_BT is None else segment_ids_BT > 0
        segment_ids_BT = segment_ids_BT if self.isolated else None
        implementation, _ = attention_choice(
            self.config, self.recipe, self.platform, isolated=segment_ids_BT is not None
        )
        structure, stacked = nnx.split(self.mtp)
        rotation = rope.rotations(self.config, positions_BT).full

        def layer(h_BTD, embedded_BTD, state):
            module = nnx.merge(structure, state)
            out_BTD = module(
                h_BTD,
                embedded_BTD,
                rotation,
                segment_ids_BT,
                rng,
                implementation=implementation,
                is_token_BT=is_token_BT,
            )
            return out_BTD, asked(module)

        state = jax.tree.map(lambda w: w[depth], stacked)
        out_BTD, now = _remat(layer, self.config, looped=False)(h_BTD, self.embed(next_BT), state)
        before = asked(self.mtp)
        nnx.update(self.mtp, jax.tree.map(lambda all, one: all.at[depth].set(one), before, now))
        return out_BTD

    def head_DV(self) -> Float[jax.Array, "D V"]:
        """The output projection in compute dtype; V with padding (config.num_vocab_rows).

        It has rows for whatever `finish` adds to the width.
        """
        head = self.embedding_VD[...].T if self.config.tied_head else self.w_head_DV[...]
        head_DV = head.astype(self.recipe.compute_dtype)
        return self.masked_lm.with_bias(head_DV) if self.config.masked_lm_head else head_DV

    def scores(self, h_BTD: Float[jax.Array, "B T D"]) -> Float[jax.Array, "B T"]:
        """Float32 scores of a reward model (config.scalar_head) at every position."""
        return jnp.einsum(
            "BTD,D->BT",
            h_BTD.astype(jnp.float32),
            self.w_score_D[...],
            precision=jax.lax.Precision.HIGHEST,
        )

    def logits(self, h_BTD: Float[jax.Array, "B T D"]) -> Float[jax.Array, "B T V"]:
        """Float32 logits of the vocabulary without padding, soft-capped if the config says so."""
        logits_BTV = self.recipe.dot_general(
            h_BTD,
            self.head_DV(),
            dimension_numbers=(((2,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        cap = self.config.logit_softcap
        if cap is not None:
            logits_BTV = cap * jnp.tanh(logits_BTV / cap)
        return self.constrain(logits_BTV[..., : self.config.vocab_size], "BTV")

    def __call__(
        self,
        inputs_BT: Int[jax.Array, "B T"],
        positions_BT: Int[jax.Array, "B T"],
        segment_ids_BT: Int[jax.Array, "B T"] | None = None,
        rng: Key[jax.Array, ""] | None = None,
    ) -> Float[jax.Array, "B T V"]:
        """Float32 logits of every position; arguments as in `hidden`."""
        return self.logits(self.hidden(inputs_BT, positions_BT, segment_ids_BT, rng))

    def embed(self, inputs_BT: Int[jax.Array, "B T"]) -> Float[jax.Array, "B T D"]:
        """What enters the first block; an id outside the vocabulary is NaN."""
        config, dtype = self.config, self.recipe.compute_dtype
        if config.num_vocab_rows > config.vocab_size:  # padding is no token either
            inside = inputs_BT < config.vocab_size
            inputs_BT = jnp.where(inside, inputs_BT, config.num_vocab_rows)
        rows = self.embedding_VD[...].at[inputs_BT]
        x_BTD = rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        x_BTD = x_BTD.astype(dtype)  # after the look-up: V rows are more than B·T
        return x_BTD * jnp.asarray(config.d_model**0.5, dtype) if config.scale_embedding else x_BTD

    def _apply_blocks(
        self,
        x_BTD: jax.Array,
        rotations: rope.Rotations,
        segment_ids_BT: jax.Array | None,
        rng: jax.Array | None,
        is_token_BT: jax.Array | None,
    ) -> jax.Array:
        implementation, _ = attention_choice(
            self.config, self.recipe, self.platform, isolated=segment_ids_BT is not None
        )

        def layer(structure, quantize, window, x_BTD, state, index):
            layer_rng = None if rng is None else jax.random.fold_in(rng, index)
            block = nnx.merge(structure, quantize(state, layer_rng))
            x_BTD = block(
                x_BTD,
                rotations.of(window),
                segment_ids_BT,
                layer_rng,
                window=window,
                implementation=implementation,
                is_token_BT=is_token_BT,
            )
            return x_BTD, asked(block)

        for name, layers in self.config.block_stacks.items():
            stack = getattr(self, name)
            structure, stacked = nnx.split(stack)
            parts = low_precision.parts(self.recipe, stack, layers, self.config)
            measured = []
            for part, of_part in zip(parts, self._weights_of_parts(stacked, parts), strict=True):
                of_layer = functools.partial(layer, structure, part.quantize)
                unroll = self._num_unrolled(len(part.layers))
                x_BTD, given = _apply_stacked(
                    of_layer, of_part, x_BTD, self.config, part.layers, unroll
                )
                measured.append(given)
            nnx.update(stack, jax.tree.map(lambda *parts: jnp.concatenate(parts), *measured))
        return x_BTD

    def _weights_of_parts(
        self, stacked: Any, parts: Sequence[low_precision.Part]
    ) -> list["_Weights"]:
        """Cut where every layer is unrolled anyway; a loop would copy its piece of the stack."""
        if not any(
            _num_turns(self.config, part.layers, self._num_unrolled(len(part.layers)))
            for part in parts
        ):
            pieces = _cut(stacked, [len(part.layers) for part in parts])
            return [_Weights(piece, part.layers) for piece, part in zip(pieces, parts, strict=True)]
        return [_Weights(stacked, range(parts[0].layers.start, parts[-1].layers.stop))] * len(parts)

    def _num_unrolled(self, num_layers: int) -> int:
        if self.config.scan_unroll is not None:
            return self.config.scan_unroll
        few = num_layers <= _MAX_UNROLLED_ON_CPU
        return num_layers if self.platform == "cpu" and few else 1


def attention_choice(
    config: ModelConfig, recipe: Recipe, platform: str, *, isolated: bool
) -> tuple[str, str]:
    """What config.attention means here (see `attention.choose`) and why, for the start-up report.

    Raises:
      ValueError: if the config asks for an implementation that cannot be used.
    """
    return choose(
        config.attention,
        platform,
        isolated=isolated,
        head_dim=config.head_dim,
        dtype=recipe.compute_dtype,
        softcap=config.attention_softcap,
        window=config.window,
        causal=not config.bidirectional,
        sinks=config.attention_sinks,
    )


def _stacked(block: Callable[..., M], rng: jax.Array, num_layers: int) -> M:
    """`num_layers` blocks in one: parameters stacked along a leading "L", each from its own key."""

    def init(key: jax.Array) -> nnx.State:
        return nnx.state(block(rngs=nnx.Rngs(key)))

    stacked = jax.vmap(init)(jax.random.split(rng, num_layers))
    structure = nnx.graphdef(nnx.eval_shape(lambda: block(rngs=nnx.Rngs(0))))
    model = nnx.merge(structure, stacked)
    for _, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        variable.set_metadata(axes="L" + variable.get_metadata("axes"))
    for _, variable in nnx.to_flat_state(nnx.state(model, Measured)):
        variable.set_metadata(extent=(num_layers, *variable.get_metadata("extent")))
    return model


class _Weights(NamedTuple):
    """Stacked weights and the layers that they are of."""

    stacked: Any
    layers: range

    def of(self, index: jax.Array) -> Any:
        """Those of the layer of that number."""
        row = index - self.layers.start
        return jax.tree.map(
            lambda w: jax.lax.dynamic_index_in_dim(w, row, keepdims=False), self.stacked
        )

    def of_each(self, layers: range) -> list[Any]:
        """Those of some neighbouring layers."""
        start = layers.start - self.layers.start
        some = jax.tree.map(lambda w: w[start : start + len(layers)], self.stacked)
        return _unstack(some, len(layers))


def _num_turns(config: ModelConfig, layers: range, unroll: int) -> int:
    """Turns of the loop over these layers; 0 where all would be unrolled."""
    turns = len(layers) // config.layer_period(layers)
    return turns if unroll < turns else 0


def _apply_stacked(
    layer: Callable[..., tuple[jax.Array, Any]],
    weights: _Weights,
    x: jax.Array,
    config: ModelConfig,
    layers: range,
    unroll: int,
) -> tuple[jax.Array, Any]:
    """`x` through layer(window, x, state, index) for each of `layers`.

    One turn of the loop holds `layer_period` layers, because a window is static. What does not
    fill a turn, or everything if all turns are unrolled, follows one by one.

    The loop goes over numbers of layers, and `remat` slices the whole stack: the backward pass
    slices it again, and adds each layer's gradient in place. As what the loop runs over, a part of
    the stack would be copied, and so would its gradients; a slice that `remat` is given is kept for
    the backward pass, all layers' weights once more.

    Args:
      weights: of `layers`, and it may be of others.

    Returns:
      The last `x`, and what else the layers give, stacked as they are.
    """
    period = config.layer_period(layers)
    num_looped = _num_turns(config, layers, unroll) * period
    given: list[Any] = []

    if num_looped:

        def sliced(window, x, stacked, index):
            return layer(window, x, weights._replace(stacked=stacked).of(index), index)

        kinds = [
            _remat(functools.partial(sliced, config.layer_window(index)), config, looped=True)
            for index in layers[:period]
        ]

        def turn(x, first):
            given = []
            for number, kind in enumerate(kinds):
                x, of_layer = kind(x, weights.stacked, first + number)
                given.append(of_layer)
            return x, _stack(given)

        firsts = jnp.arange(layers.start, layers.start + num_looped, period, dtype=jnp.int32)
        x, of_turns = jax.lax.scan(turn, x, firsts, unroll=unroll)
        given.append(jax.tree.map(lambda y: y.reshape(num_looped, *y.shape[2:]), of_turns))

    rest = layers[num_looped:]
    for index, state in zip(rest, weights.of_each(rest), strict=True):
        one = functools.partial(layer, config.layer_window(index))
        x, of_layer = _remat(one, config, looped=False)(x, state, index)
        given.append(_stack([of_layer]))
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *given)


def _cut(stacked: Any, sizes: Sequence[int]) -> list[Any]:
    """Stacked trees of `sizes` layers each; all of them as they are, which copies nothing."""
    if len(sizes) == 1:
        return [stacked]
    leaves, structure = jax.tree.flatten(stacked)
    pieces = [jax.lax.split(leaf, tuple(sizes)) for leaf in leaves]
    return [structure.unflatten(piece) for piece in zip(*pieces, strict=True)]


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _unstack(tree: Any, num: int) -> list[Any]:
    """The slices along the leading dimension.

    By `split`, whose gradient is one concatenation, instead of indexing, whose gradient adds up
    `num` padded arrays.
    """
    if num == 0:
        return []
    leaves, structure = jax.tree.flatten(tree)
    rows = [[row[0] for row in jax.lax.split(leaf, (1,) * num)] for leaf in leaves]
    return [structure.unflatten(row) for row in zip(*rows, strict=True)]


def _is_no_slice(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name not in ("dynamic_slice", "squeeze")


def _remat(layer: Callable, config: ModelConfig, *, looped: bool) -> Callable:
    """`layer` with its backward pass as config.remat says."""
    if config.remat == "none":
        # Slices of stacked weights alone are made again, where a loop makes them.
        return jax.checkpoint(layer, policy=_is_no_slice, prevent_cse=False) if looped else layer
    policy = {
        "full": checkpoint_policies.nothing_saveable,
        "dots": checkpoint_policies.dots_with_no_batch_dims_saveable,
    }.get(config.remat) or checkpoint_policies.save_only_these_names(*config.saved_names())
    # The barrier against merging recomputation with the forward pass costs fusions; a loop body is
    # a barrier of its own.
    return jax.checkpoint(layer, policy=policy, prevent_cse=not looped)
