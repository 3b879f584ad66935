"""Against float64 products of operands that ml_dtypes has rounded."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from jaxtrain.precision import fp8
from jaxtrain.precision.quantize import E4M3, E5M2

REFERENCE = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}
SHAPES = [
    ((5, 2, 32), (32, 48), 1),  # x_BTD · w_DF
    ((5, 2, 32), (32, 4, 16), 1),  # x_BTD · w_DNH
    ((5, 2, 4, 16), (4, 16, 32), 2),  # o_BTNH · w_NHD
]


def rounded(x, dtype, amax=None) -> np.ndarray:
    """x as its FP8 values stand for it, under a power-of-two scale from `amax`, in float64."""
    x = np.asarray(x, np.float64)
    limit = float(ml_dtypes.finfo(REFERENCE[dtype]).max)
    amax = float(np.abs(x).max() if amax is None else amax)
    scale = 2.0 ** np.ceil(np.log2(amax / limit)) if amax else 1.0
    values = np.clip(x / scale, -limit, limit).astype(np.float32).astype(REFERENCE[dtype])
    return values.astype(np.float64) * scale


def operands(x_shape, w_shape, num_contracted):
    rng = np.random.default_rng(0)
    out_shape = (*x_shape[: len(x_shape) - num_contracted], *w_shape[num_contracted:])
    shapes, sizes = (x_shape, w_shape, out_shape), (3.0, 0.1, 1e-4)
    x, w, g = (rng.normal(size=s) * size for s, size in zip(shapes, sizes, strict=True))
    return jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.float32), jnp.asarray(g, jnp.bfloat16)


def matrices(x, w, g, num_contracted):
    """All three as matrices."""
    inputs = int(np.prod(w.shape[:num_contracted]))
    return (np.asarray(a, np.float64).reshape(s) for a, s in (
        (x, (-1, inputs)), (w, (inputs, -1)), (g, (-1, w.size // inputs))))  # fmt: skip


def assert_rounded_once(actual, expected):
    """bfloat16 of the exact value, whose unit roundoff is 2^-8, beside a little of float32 sums."""
    error = np.abs(np.asarray(actual, np.float64).reshape(expected.shape) - expected)
    assert (error <= np.abs(expected) * 2.0**-8 + np.abs(expected).max() * 1e-5).all()


def multiply(x, w, num_contracted=1, history=None, probe=None, gradient_dtype=E5M2):
    spec = fp8.Spec(num_contracted, gradient_dtype, jnp.float32, "w")
    return fp8.product(spec, x, w.astype(x.dtype), history, probe)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "num_contracted", "gradient_dtype"),
    [*((*shape, E5M2) for shape in SHAPES), (*SHAPES[0], E4M3)],
)
def test_output_and_gradients_are_products_of_fp8_operands(
    x_shape, w_shape, num_contracted, gradient_dtype
):
    x, w, g = operands(x_shape, w_shape, num_contracted)

    @jax.jit
    def all_three(x, w, g):
        def output(x, w):
            return multiply(x, w, num_contracted, gradient_dtype=gradient_dtype)

        y, pull = jax.vjp(output, x, w)
        return y, *pull(g)

    y, d_x, d_w = all_three(x, w, g)
    assert (y.shape, d_x.dtype, d_w.dtype) == (g.shape, jnp.bfloat16, jnp.float32)
    w = w.astype(jnp.bfloat16)  # the compute dtype comes first, as under every recipe
    x, w, g = matrices(x, w, g, num_contracted)
    qx, qw, qg = rounded(x, E4M3), rounded(w, E4M3), rounded(g, gradient_dtype)
    assert_rounded_once(y, qx @ qw)
    assert_rounded_once(d_x, qg @ qw.T)
    assert_rounded_once(d_w, qx.T @ qg)
    # And so near the product itself, as 3 and 2 bits of mantissa allow.
    assert np.linalg.norm(qx @ qw - x @ w) < 0.05 * np.linalg.norm(x @ w)
    assert np.linalg.norm(qg @ qw.T - g @ w.T) < 0.08 * np.linalg.norm(g @ w.T)


def test_stochastic_rounding_is_of_the_gradient_alone_and_right_on_average():
    x, w, g = operands(*SHAPES[0])

    @jax.jit
    def all_three(rng):
        spec = fp8.Spec(1, E5M2, jnp.float32, "w")
        y, pull = jax.vjp(lambda x, w: fp8.product(spec, x, w, None, None, rng), x, w)
        return y, *pull(g)

    draws = [all_three(jax.random.key(seed)) for seed in range(256)]
    y, d_x, d_w = (
        np.stack([np.asarray(each, np.float64) for each in a]) for a in zip(*draws, strict=True)
    )
    np.testing.assert_array_equal(y, np.broadcast_to(multiply(x, w), y.shape))
    assert not (d_w[0] == d_w[1]).all()
    x, w, g = matrices(x, w.astype(jnp.bfloat16), g, 1)
    for found, exact in ((d_x, g @ rounded(w, E4M3).T), (d_w, rounded(x, E4M3).T @ g)):
        error = found.mean(axis=0).reshape(exact.shape) - exact
        bound = 5.5 * found.std(axis=0).reshape(exact.shape) / 16
        assert (np.abs(error) <= bound + np.abs(exact).max() * 1e-3).all()


def test_all_three_products_have_fp8_operands():
    x, w, g = operands(*SHAPES[0])

    def gradients(x, w):
        y, pull = jax.vjp(multiply, x, w)
        return y, pull(g)

    found = []

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                found.append([operand.aval.dtype.name for operand in equation.invars])
            for inner in jaxprs_in_params(equation.params):
                visit(inner)

    visit(jax.make_jaxpr(gradients)(x, w).jaxpr)
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    assert found == [[e4m3, e4m3], [e5m2, e4m3], [e4m3, e5m2]]


@pytest.mark.parametrize("probed", [True, False])
def test_delayed_scales_come_from_the_history_alone(probed):
    """Twice the largest magnitude fits one more bit; an eighth of it saturates."""
    x, w, g = operands(*SHAPES[0])
    amax = np.array([float(jnp.max(jnp.abs(a.astype(jnp.bfloat16)))) for a in (x, w, g)])
    history = np.zeros((3, 4), np.float32)
    history[:, 2] = amax * [2, 1 / 8, 1]
    history[:, 3] = history[:, 2] / 3
    probe = jnp.zeros(3) if probed else None

    def forward(x, w):
        return multiply(x, w, 1, jnp.asarray(history), probe)

    y, pull = jax.vjp(forward, x, w)
    d_x, d_w = pull(g)
    x, w, g = matrices(x, w.astype(jnp.bfloat16), g, 1)
    qx, qw = rounded(x, E4M3, history[0, 2]), rounded(w, E4M3, history[1, 2])
    qg = rounded(g, E5M2, history[2, 2])
    assert np.abs(qw).max() < np.abs(w).max() / 4  # saturated
    assert_rounded_once(y, qx @ qw)
    assert_rounded_once(d_x, qg @ qw.T)
    assert_rounded_once(d_w, qx.T @ qg)


def test_gradient_of_the_probe_is_what_the_pass_has_seen():
    """In a rematerialised loop over layers too, each with a probe of its own."""
    x, _, _ = operands((4, 32), (32, 32), 1)
    w = jnp.asarray(np.random.default_rng(1).normal(size=(3, 32, 32)), jnp.float32)
    history = jnp.ones((3, 3, 4))

    def loss(probes):
        @jax.checkpoint
        def layer(x, w, history, probe):
            return jnp.tanh(multiply(x, w, 1, history, probe))

        last, inputs = jax.lax.scan(lambda x, each: (layer(x, *each), x), x, (w, history, probes))
        return jnp.sum(last.astype(jnp.float32) ** 2), inputs

    seen, inputs = jax.grad(loss, has_aux=True)(jnp.zeros((3, 3)))
    np.testing.assert_array_equal(seen[:, 0], np.abs(np.asarray(inputs, np.float32)).max((1, 2)))
    rounded_w = np.asarray(w.astype(jnp.bfloat16), np.float32)
    np.testing.assert_array_equal(seen[:, 1], np.abs(rounded_w).max((1, 2)))
    assert (np.asarray(seen[:, 2]) > 0).all()


def test_first_update_without_a_history_multiplies_unscaled():
    x, w, _ = operands(*SHAPES[0])
    x_values = rounded(x, E4M3, 448)
    expected = np.einsum("btd,df->btf", x_values, rounded(w.astype(jnp.bfloat16), E4M3, 448))
    assert_rounded_once(multiply(x, w, 1, jnp.zeros((3, 4))), expected)


@pytest.mark.parametrize("bad", ["input", "history"])
def test_what_is_not_finite_makes_the_output_nan(bad):
    x, w, _ = operands(*SHAPES[0])
    history = jnp.ones((3, 4))
    if bad == "history":
        history = history.at[1, 2].set(jnp.nan)
    else:
        x = x.at[0, 0, 0].set(jnp.inf)
        history = None
    assert np.isnan(multiply(x, w, 1, history)).any()
