"""Precision recipes: the number formats of a run as one injected `dot_general`.

Master weights, norms, softmax, logits and losses are float32 under every recipe. A recipe decides
the dtype of activations and how a weight matmul multiplies; every weight matmul of the model goes
through `Recipe.dot_general`, so that a new format (FP8, say) is one entry here and no change there.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain.options import option


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a model computes."""

    name: str
    compute_dtype: type  #: of activations; float32 weights are cast to it where they are used
    #: Called like `jax.lax.dot_general`, with `dimension_numbers` and `preferred_element_type`.
    dot_general: Callable[..., jax.Array]


def _dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: lax.DotDimensionNumbers,
    preferred_element_type: jnp.dtype | type | None = None,
    *,
    precision: lax.Precision | None,
) -> jax.Array:
    """`lax.dot_general` whose gradient of the weights multiplies in another order of operands."""
    dot = functools.partial(
        lax.dot_general,
        dimension_numbers=dimension_numbers,
        preferred_element_type=preferred_element_type,
        precision=precision,
    )
    return _product(dot, lhs, rhs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(dot: functools.partial, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return dot(lhs, rhs)


def _product_forward(dot, lhs, rhs):
    return dot(lhs, rhs), (lhs, rhs)


def _product_backward(dot, operands, gradient):
    """d rhs = lhsᵀ · gradient, where JAX writes (gradientᵀ · lhs)ᵀ.

    XLA's CPU matmul transposes a left operand that is summed over its leading dimensions, which
    costs most for the larger of the two: JAX's order made a whole training step 1.3 times slower.
    """
    lhs, rhs = operands
    (of_lhs, of_rhs), (batch_lhs, batch_rhs) = dot.keywords["dimension_numbers"]
    free_lhs = [axis for axis in range(lhs.ndim) if axis not in (*of_lhs, *batch_lhs)]
    free_rhs = [axis for axis in range(rhs.ndim) if axis not in (*of_rhs, *batch_rhs)]
    batch = tuple(range(len(batch_lhs)))
    free_lhs_in_gradient = tuple(range(len(batch), len(batch) + len(free_lhs)))
    d_rhs = lax.dot_general(
        lhs,
        gradient,
        ((tuple(free_lhs), free_lhs_in_gradient), (batch_lhs, batch)),
        precision=dot.keywords["precision"],
        preferred_element_type=rhs.dtype,
    )
    in_rhs = dict(zip(of_lhs, of_rhs, strict=True))
    axes = (*batch_rhs, *(in_rhs[axis] for axis in sorted(of_lhs)), *free_rhs)  # of d_rhs
    (d_lhs,) = jax.linear_transpose(lambda lhs: dot(lhs, rhs), lhs)(gradient)
    return d_lhs, d_rhs.transpose([axes.index(axis) for axis in range(rhs.ndim)])


_product.defvjp(_product_forward, _product_backward)


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        # HIGHEST: by default an NVIDIA GPU multiplies float32 in TF32, with 10 bits of mantissa.
        Recipe(
            "float32",
            jnp.float32,
            functools.partial(_dot_general, precision=lax.Precision.HIGHEST),
        ),
        Recipe("bfloat16", jnp.bfloat16, functools.partial(_dot_general, precision=None)),
    )
}


@dataclasses.dataclass(frozen=True)
class PrecisionConfig:
    """Section `precision` of the config."""

    recipe: str = option(
        "bfloat16",
        "Format of activations and weight matmuls (master weights stay float32).",
        choices=tuple(RECIPES),
    )

    def __post_init__(self) -> None:
        get_recipe(self.recipe)


def get_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
      ValueError: for an unknown name, listing the known ones.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe={name!r} must be one of {', '.join(RECIPES)}.")
    return RECIPES[name]
