"""Dimension letters of an optimizer's state, so that it can be sharded like the parameters."""

from typing import Any

import jax
import optax


def state_axes(transform: optax.GradientTransformation, params: Any, axes: Any) -> Any:
    """A tree like `transform.init(params)`: letters for moments, "" for counters.

    Moments have the letters of their parameter; what has another shape (scales of 8-bit moments) is
    whole on every device, and what a transformation masks out (`optax.MaskedNode`) stays as it is.
    `params` may be abstract.
    """
    return optax.tree_utils.tree_map_params(
        transform,
        _letters,
        jax.eval_shape(transform.init, params),
        axes,
        jax.eval_shape(lambda params: params, params),
        transform_non_params=lambda _: "",
        is_leaf=_is_masked,
    )


def _letters(node: Any, letters: str, param: jax.ShapeDtypeStruct) -> Any:
    if _is_masked(node):
        return node
    return letters if node.shape == param.shape else ""


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)
