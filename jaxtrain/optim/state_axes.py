"""Dimension letters of an optimizer's state, so that it can be sharded like the parameters."""

from typing import Any

import jax
import optax


def state_axes(transform: optax.GradientTransformation, params: Any, axes: Any) -> Any:
    """A tree like `transform.init(params)`: letters for moments, "" for counters.

    Moments have the letters of their parameter; what a transformation masks out
    (`optax.MaskedNode`) stays as it is. `params` may be abstract.
    """
    return optax.tree_utils.tree_map_params(
        transform,
        lambda node, letters: node if _is_masked(node) else letters,
        jax.eval_shape(transform.init, params),
        axes,
        transform_non_params=lambda _: "",
        is_leaf=_is_masked,
    )


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)
