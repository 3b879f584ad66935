import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.precision.recipe import RECIPES, PrecisionConfig, get_recipe

MATMUL = (((1,), (0,)), ((), ()))


def test_unknown_recipe_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="recipe='fp7' must be one of float32, bfloat16"):
        PrecisionConfig(recipe="fp7")


def test_default_recipe_exists():
    assert get_recipe(PrecisionConfig().recipe).compute_dtype == jnp.bfloat16


def test_float32_recipe_asks_for_full_precision():
    """Without it an NVIDIA GPU multiplies in TF32; a CPU could not show the difference."""
    x = jnp.ones((2, 2))

    def dot(a, b):
        return get_recipe("float32").dot_general(a, b, dimension_numbers=MATMUL)

    (equation,) = jax.make_jaxpr(dot)(x, x).eqns
    assert equation.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipe_multiplies_as_numpy_does_and_accumulates_in_float32(name):
    recipe = get_recipe(name)
    rng = np.random.default_rng(0)
    # 4096 terms: summed in bfloat16, the result would stall at a few hundred.
    a, b = (jnp.asarray(rng.uniform(0.5, 1.5, (4, 4096)), recipe.compute_dtype) for _ in range(2))
    out = recipe.dot_general(a, b.T, dimension_numbers=MATMUL, preferred_element_type=jnp.float32)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, np.asarray(a, np.float64) @ np.asarray(b, np.float64).T, 1e-5)
