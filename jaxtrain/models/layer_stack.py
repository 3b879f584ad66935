"""Layers of one kind as one: their weights stacked along a leading "L", applied by a loop.

Compile time and program size do not grow with the number of layers; config.remat decides by name
what the backward pass recomputes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import checkpoint_policies

from jaxtrain.measured import Measured
from jaxtrain.models.config import ModelConfig

_MAX_UNROLLED_ON_CPU = 8
M = TypeVar("M", bound=nnx.Module)


def stack(block: Callable[..., M], rng: jax.Array, num_layers: int) -> M:
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


class Weights(NamedTuple):
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


def weights_of(
    config: ModelConfig, stacked: Any, parts: Sequence[range], platform: str
) -> list[Weights]:
    """Of each part of a stack, neighbouring layers, what `apply` takes.

    Cut where every layer is unrolled anyway; a loop would copy its piece of the stack.
    """
    if not any(_num_turns(config, layers, platform) for layers in parts):
        pieces = _cut(stacked, [len(layers) for layers in parts])
        return [Weights(piece, layers) for piece, layers in zip(pieces, parts, strict=True)]
    return [Weights(stacked, range(parts[0].start, parts[-1].stop))] * len(parts)


def apply(
    layer: Callable[..., tuple[jax.Array, Any]],
    weights: Weights,
    x: jax.Array,
    config: ModelConfig,
    layers: range,
    platform: str,
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
    num_looped = _num_turns(config, layers, platform) * period
    given: list[Any] = []

    if num_looped:

        def sliced(window, x, stacked, index):
            return layer(window, x, weights._replace(stacked=stacked).of(index), index)

        kinds = [
            remat(functools.partial(sliced, config.layer_window(index)), config, looped=True)
            for index in layers[:period]
        ]

        def turn(x, first):
            given = []
            for number, kind in enumerate(kinds):
                x, of_layer = kind(x, weights.stacked, first + number)
                given.append(of_layer)
            return x, _stack(given)

        unroll = _num_unrolled(config, len(layers), platform)
        firsts = jnp.arange(layers.start, layers.start + num_looped, period, dtype=jnp.int32)
        x, of_turns = jax.lax.scan(turn, x, firsts, unroll=unroll)
        given.append(jax.tree.map(lambda y: y.reshape(num_looped, *y.shape[2:]), of_turns))

    rest = layers[num_looped:]
    for index, state in zip(rest, weights.of_each(rest), strict=True):
        one = functools.partial(layer, config.layer_window(index))
        x, of_layer = remat(one, config, looped=False)(x, state, index)
        given.append(_stack([of_layer]))
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *given)


def _num_turns(config: ModelConfig, layers: range, platform: str) -> int:
    """Turns of the loop over these layers; 0 where all would be unrolled."""
    turns = len(layers) // config.layer_period(layers)
    return turns if _num_unrolled(config, len(layers), platform) < turns else 0


def _num_unrolled(config: ModelConfig, num_layers: int, platform: str) -> int:
    if config.scan_unroll is not None:
        return config.scan_unroll
    few = num_layers <= _MAX_UNROLLED_ON_CPU
    return num_layers if platform == "cpu" and few else 1


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


def remat(layer: Callable, config: ModelConfig, *, looped: bool) -> Callable:
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
