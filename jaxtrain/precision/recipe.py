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

from jaxtrain.options import option


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a model computes."""

    name: str
    compute_dtype: type  #: of activations; float32 weights are cast to it where they are used
    #: Called like `jax.lax.dot_general`, with `dimension_numbers` and `preferred_element_type`.
    dot_general: Callable[..., jax.Array]


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        # HIGHEST: by default an NVIDIA GPU multiplies float32 in TF32, with 10 bits of mantissa.
        Recipe(
            "float32",
            jnp.float32,
            functools.partial(jax.lax.dot_general, precision=jax.lax.Precision.HIGHEST),
        ),
        Recipe("bfloat16", jnp.bfloat16, jax.lax.dot_general),
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
