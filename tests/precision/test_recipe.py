import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.precision.recipe import RECIPES, PrecisionConfig, get_recipe, training_recipe

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

    def gradients(a, b):
        return jax.grad(lambda a, b: jnp.sum(dot(a, b)), argnums=(0, 1))(a, b)

    for function, num_products in ((dot, 1), (gradients, 3)):
        found = re.findall(r"precision=\(?(\S+?),", str(jax.make_jaxpr(function)(x, x)))
        assert found == ["Precision.HIGHEST"] * num_products


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipe_multiplies_as_numpy_does_and_accumulates_in_float32(name):
    recipe = get_recipe(name)
    rng = np.random.default_rng(0)
    # 4096 terms: summed in bfloat16, the result would stall at a few hundred.
    a, b = (jnp.asarray(rng.uniform(0.5, 1.5, (4, 4096)), recipe.compute_dtype) for _ in range(2))
    out = recipe.dot_general(a, b.T, dimension_numbers=MATMUL, preferred_element_type=jnp.float32)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, np.asarray(a, np.float64) @ np.asarray(b, np.float64).T, 1e-5)


@pytest.mark.parametrize(
    ("lhs", "rhs", "dimension_numbers"),
    [
        ((5, 2, 3), (3, 4), (((2,), (0,)), ((), ()))),  # x_BTD · w_DF
        ((5, 2, 3), (3, 4, 6), (((2,), (0,)), ((), ()))),  # x_BTD · w_DNH
        ((5, 2, 3, 4), (3, 4, 6), (((2, 3), (0, 1)), ((), ()))),  # o_BTNH · w_NHD
        ((5, 2, 3), (4, 3), (((2,), (1,)), ((), ()))),  # the right operand transposed
        ((4, 3, 5), (6, 3, 4), (((1, 0), (1, 2)), ((), ()))),  # summed in another order
        ((7, 5, 3), (7, 5, 4), (((1,), (1,)), ((0,), (0,)))),  # batched
        ((5, 3, 7), (3, 7, 4), (((1,), (0,)), ((2,), (1,)))),  # batched along inner dimensions
    ],
)
def test_gradients_equal_those_of_lax_dot_general(lhs, rhs, dimension_numbers):
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in (lhs, rhs))

    def output_and_gradients(dot):
        output, pull = jax.vjp(lambda a, b: dot(a, b, dimension_numbers), lhs, rhs)
        return output, *pull(jnp.asarray(np.random.default_rng(1).normal(size=output.shape), "f4"))

    actual = output_and_gradients(get_recipe("float32").dot_general)
    for x, y in zip(actual, output_and_gradients(jax.lax.dot_general), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def gradient_of_weight(reduce_dtype: str) -> np.ndarray:
    """Of a float32 weight of one number that 257 rows of 1 are multiplied by, on 8 devices each."""
    config = PrecisionConfig(recipe="bfloat16", grad_reduce_dtype=reduce_dtype)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    x = jax.device_put(jnp.ones((8 * 257, 1), jnp.bfloat16), where)

    # Not jitted: XLA on CPUs leaves roundings out between what it compiles together.
    dot = training_recipe(config).dot_general
    _, pull = jax.vjp(lambda w: dot(x, w, dimension_numbers=MATMUL), jnp.ones((1, 1)))
    (gradient,) = pull(jnp.ones((8 * 257, 1), jnp.bfloat16))
    assert gradient.dtype == jnp.float32
    return np.asarray(gradient)


def test_gradients_of_devices_are_added_up_in_the_dtype_asked_for():
    """Neither 257 nor 8 · 257 is a bfloat16 number: the nearest even one is 8 · 256."""
    assert gradient_of_weight("float32") == 8 * 257
    assert gradient_of_weight("bfloat16") == 8 * 256


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"grad_reduce_dtype": "float16"}, "must be one of float32, bfloat16"),
        ({"recipe": "float16", "grad_reduce_dtype": "bfloat16"}, "which computes in float16; set"),
        ({"recipe": "float32", "grad_reduce_dtype": "bfloat16"}, "which computes in float32; set"),
        ({"grad_rounding": "up"}, "must be one of nearest, stochastic"),
        ({"grad_rounding": "stochastic"}, "is for fp8, fp8_block, mxfp8, nvfp4"),
        ({"scaling": "delayed"}, "it is for fp8; set config.precision.scaling=current"),
        ({"recipe": "fp8_block", "scaling": "delayed"}, "no use .*='fp8_block'"),
    ],
)
def test_choices_that_do_not_fit_the_recipe_are_one_line(fields, line):
    (name,) = {"scaling", "grad_reduce_dtype", "grad_rounding"} & set(fields)
    with pytest.raises(ValueError, match=rf"^{name}='{fields[name]}' .*{line}"):
        PrecisionConfig(**fields)


def test_remat_that_saves_products_runs_none_again():
    def num_products(policy):
        def total(x, w):
            def layer(x):
                product = get_recipe("float32").dot_general(x, w, dimension_numbers=MATMUL)
                return jnp.tanh(product)

            return jnp.sum(jax.checkpoint(layer, policy=policy)(x))

        x = jnp.ones((2, 2))
        return str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(x, x)).count("dot_general[")

    assert num_products(jax.checkpoint_policies.dots_with_no_batch_dims_saveable) == 3
    assert num_products(jax.checkpoint_policies.nothing_saveable) == 4
