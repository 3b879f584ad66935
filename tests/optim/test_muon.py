import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtrain.optim.muon import newton_schulz, scale_by_muon

MOMENTUM = 0.9


def directions(axes, grads_of_steps):
    """The last of several directions of one parameter."""
    transform = scale_by_muon(axes, MOMENTUM)
    state = transform.init(jax.tree.map(jnp.asarray, grads_of_steps[0]))
    result = None
    for grads in grads_of_steps:
        result, state = transform.update(grads, state)
    return result


def reference(grads_of_steps):
    """Direction of one matrix in float64, written on the singular values.

    Newton–Schulz maps X = U Σ Vᵀ to U f(f(…f(Σ / |X|))) Vᵀ with f(s) = a s + b s³ + c s⁵.
    """
    average = np.zeros_like(grads_of_steps[0], dtype=np.float64)
    for grad in grads_of_steps:
        average = MOMENTUM * average + (1 - MOMENTUM) * grad
        nesterov = MOMENTUM * average + (1 - MOMENTUM) * grad
    left, s, right = np.linalg.svd(nesterov, full_matrices=False)
    s = s / np.sqrt(np.sum(s**2))
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return 0.2 * np.sqrt(max(nesterov.shape)) * (left * s) @ right


def normal(shape, steps=3):
    rng = np.random.default_rng(len(shape))
    return [rng.normal(size=shape).astype(np.float32) for _ in range(steps)]


# 2e-5 of the largest entry: five float32 iterations, each up to 3.4 times steeper than the last
close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("shape", [(6, 11), (11, 6), (7, 7)])
def test_direction_equals_newton_schulz_on_the_singular_values(shape):
    grads = normal(shape)
    close(directions("DF", grads), reference(grads))


def test_each_layer_of_a_stack_is_its_own_matrix():
    grads = normal((3, 6, 11))
    result = directions("LDF", grads)
    for layer in range(3):
        close(result[layer], reference([g[layer] for g in grads]))


def test_heads_of_an_input_projection_make_one_matrix():
    grads = normal((2, 6, 3, 4))  # LDNH
    result = directions("LDNH", grads)
    for layer in range(2):
        expected = reference([g[layer].reshape(6, 12) for g in grads])
        close(result[layer], expected.reshape(6, 3, 4))


def test_heads_of_an_output_projection_make_one_matrix():
    grads = normal((2, 3, 4, 6))  # LNHD
    result = directions("LNHD", grads)
    for layer in range(2):
        expected = reference([g[layer].reshape(12, 6) for g in grads])
        close(result[layer], expected.reshape(3, 4, 6))


def test_experts_of_all_layers_are_their_own_matrices():
    grads = normal((2, 3, 5, 7))  # LEDF
    result = directions("LEDF", grads)
    close(result[1, 2], reference([g[1, 2] for g in grads]))


@pytest.mark.parametrize("shape", [(32, 32), (32, 128), (128, 32)])
def test_update_rms_is_that_of_adamw_whatever_the_shape(shape):
    rms = np.sqrt(np.mean(np.square(directions("DF", normal(shape)))))
    assert 0.14 < rms < 0.24  # 0.2 times singular values that end between 0.7 and 1.2


def test_zero_gradient_gives_a_zero_direction():
    zeros = [np.zeros((2, 6, 5), np.float32)]
    np.testing.assert_array_equal(directions("LDF", zeros), zeros[0])


def test_nan_in_one_layer_is_not_hidden():
    grad = np.ones((2, 6, 5), np.float32)
    grad[1, 0, 0] = np.nan
    result = directions("LDF", [grad])
    assert np.isnan(result[1]).all()
    assert np.isfinite(result[0]).all()


def test_masked_parameters_are_left_alone():
    grads = {"w": np.ones((3, 4), np.float32), "embed": optax.MaskedNode()}
    assert directions({"w": "DF", "embed": "VD"}, [grads])["embed"] == optax.MaskedNode()


def test_singular_values_end_where_the_coefficients_send_them_with_bfloat16_operands():
    x = np.random.default_rng(0).normal(size=(3, 24, 40)).astype(np.float32)
    result = newton_schulz(jnp.asarray(x), jnp.bfloat16)
    assert result.dtype == jnp.float32
    singular = np.linalg.svd(result, compute_uv=False)
    assert singular.min() > 0.65  # 0.68 and 1.21 are the quintic's bounds, see `reference`
    assert singular.max() < 1.25


@pytest.mark.reference
def test_bfloat16_operands_cost_no_more_than_in_torch():
    torch = pytest.importorskip("torch")
    grads = normal((64, 96), steps=4)
    tensors = [torch.nn.Parameter(torch.zeros(64, 96)) for _ in grads]
    optimizer = torch.optim.Muon(tensors, lr=1.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for tensor, grad in zip(tensors, grads, strict=True):
        tensor.grad = torch.tensor(grad)
    optimizer.step()
    theirs = np.stack([-tensor.detach().numpy() for tensor in tensors])
    ours = 0.2 * np.sqrt(96) * newton_schulz(jnp.asarray(np.stack(grads)), jnp.bfloat16)
    exact = np.stack([reference([grad]) for grad in grads])
    # The same roundings happen in both, in another order: 1.25 is room for chance. Rounding
    # each term of the polynomial by itself costs 3.5 times as much, mixed precision twice.
    assert np.linalg.norm(ours - exact) < 1.25 * np.linalg.norm(theirs - exact)


@pytest.mark.parametrize(("platform", "dtype"), [("cpu", "f32"), ("cuda", "bf16")])
def test_products_run_in_the_dtype_of_the_platform_lowered_for(platform, dtype):
    traced = jax.jit(lambda g: directions("LDF", [g])).trace(jnp.ones((2, 6, 5)))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    operand = r"tensor<[\dx]+x(\w+)>"
    products = re.findall(rf"stablehlo\.dot_general.*: \({operand}, {operand}\)", text)
    assert products == [(dtype, dtype)] * 3
