"""The decoder: embedding, stacked blocks, final norm, head. With `bidirectional`, an encoder.

The blocks' parameters are stacked and applied by a loop (`layer_stack.py`). The losses call
`hidden` and `head_DV` and make logits in pieces; only evaluation of small things calls the model
itself.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int, Key

from jaxtrain.measured import asked
from jaxtrain.models import layer_stack, low_precision, rope
from jaxtrain.models.attention import choose
from jaxtrain.models.block import Block
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.encoder import MaskedLMHead, PositionEmbedding
from jaxtrain.models.layers import Constrain, dropout, make_norm, weight
from jaxtrain.models.mtp import DepthLosses, PredictionModule
from jaxtrain.precision.recipe import Recipe


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
            self.dense_blocks: Block = layer_stack.stack(
                dense, rngs.params(), len(stacks["dense_blocks"])
            )
        self.blocks: Block = layer_stack.stack(block, rngs.params(), len(stacks["blocks"]))
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
            self.mtp: PredictionModule = layer_stack.stack(
                module, rngs.params(), config.num_mtp_layers
            )
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
        layer = layer_stack.remat(layer, self.config, looped=False)
        out_BTD, now = layer(h_BTD, self.embed(next_BT), state)
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
            weights = layer_stack.weights_of(
                self.config, stacked, [part.layers for part in parts], self.platform
            )
            measured = []
            for part, of_part in zip(parts, weights, strict=True):
                of_layer = functools.partial(layer, structure, part.quantize)
                x_BTD, given = layer_stack.apply(
                    of_layer, of_part, x_BTD, self.config, part.layers, self.platform
                )
                measured.append(given)
            nnx.update(stack, jax.tree.map(lambda *parts: jnp.concatenate(parts), *measured))
        return x_BTD


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
