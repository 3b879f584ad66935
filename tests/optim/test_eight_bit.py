"""Against the published code table and float64; and against moments in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jaxtrain.optim.eight_bit import BLOCK, codebook, decode, encode, in_eight_bits

KEY = jax.random.key(0)


@pytest.mark.parametrize("signed", [True, False])
def test_codebook_is_that_of_the_paper(signed):
    """256 numbers with 0 and 1; half of them (of each sign) in the upper decade, then a quarter."""
    book = codebook(signed=signed).astype(np.float64)
    assert len(book) == 256
    assert {0.0, 1.0} <= set(book)
    positive = book[(book > 0) & (book < 1)]
    for decade, num in enumerate(2 ** np.arange(6 if signed else 7, -1, -1)[:7]):
        low, high = 10.0 ** -(decade + 1), 10.0**-decade
        inside = positive[(positive > low) & (positive < high)]
        assert len(inside) == num
        # Evenly apart, half a step from the ends.
        step = (high - low) / num
        np.testing.assert_allclose(inside, low + step * (np.arange(num) + 0.5), rtol=1e-6)
    if signed:
        np.testing.assert_array_equal(np.sort(-book[(book < 0)]), positive)


@given(arrays.arrays(np.float32, (3, 600), elements=st.floats(-1e3, 1e3, width=32)))
def test_each_element_becomes_one_of_its_two_neighbours_in_its_block(x):
    codes, scales = encode(jnp.asarray(x), KEY, signed=True)
    assert (codes.dtype, codes.shape, scales.shape) == (jnp.uint8, x.shape, (3, 3))
    found = np.asarray(decode(codes, scales, signed=True), np.float64)
    book = codebook(signed=True).astype(np.float64)
    for row in range(3):
        for start in range(0, 600, BLOCK):
            block = x[row, start : start + BLOCK].astype(np.float64)
            scale = np.abs(block).max() or 1.0
            above = np.clip(np.searchsorted(book, block / scale), 1, 255)
            low, high = book[above - 1] * scale, book[above] * scale
            inside = found[row, start : start + BLOCK]
            near_low, near_high = np.abs(inside - low), np.abs(inside - high)
            # Products below float32's normal numbers are flushed to 0.
            assert (np.minimum(near_low, near_high) <= 2e-6 * scale + 1.2e-38).all()


def test_rounding_is_right_on_average():
    """Of 4096 draws, each a step or none: four standard errors are 4 · 0.5 / 64 of a step."""
    x = jnp.tile(jnp.asarray([[0.5037, 1.0, -0.0123, 0.0]]), (4096, 1))
    found = np.asarray(decode(*encode(x, KEY, signed=True), signed=True), np.float64)
    step = 0.9 / 64
    assert found[:, 0].mean() == pytest.approx(0.5037, abs=step / 32)
    assert found[:, 2].mean() == pytest.approx(-0.0123, abs=step / 10 * 2 / 32)
    assert (found[:, 1] == 1).all()
    assert (found[:, 3] == 0).all()


def test_second_moments_that_are_not_zero_stay_so():
    x = jnp.asarray([[1.0, 1e-12, 0.0, 1e-30]])
    found = np.asarray(decode(*encode(x, KEY, signed=False), signed=False))[0]
    assert found[0] == 1
    assert found[1] == found[3] > 0  # the smallest code
    assert found[2] == 0


@pytest.mark.parametrize("shape", [(5,), (2, 3, 300)])
def test_codes_have_the_shape_of_what_they_stand_for(shape):
    codes, scales = encode(jnp.ones(shape), KEY, signed=True)
    assert codes.shape == shape
    np.testing.assert_array_equal(decode(codes, scales, signed=True), np.ones(shape))


@pytest.mark.parametrize(
    ("transform", "rate"),
    [(optax.scale_by_adam(0.9, 0.95), 0.03), (optax.scale_by_lion(0.9, 0.99), 0.01)],
    ids=["adam", "lion"],
)
def test_loss_on_a_toy_falls_as_with_float32_moments(transform, rate):
    """Noisy least squares whose curvatures differ 100-fold. Rounded to nearest, Lion ends 3 times
    higher."""
    rng, num_steps = np.random.default_rng(0), 400
    target = rng.normal(size=(64, 32))
    inputs = rng.normal(size=(num_steps, 64, 64)) * np.geomspace(1, 0.1, 64)
    outputs = inputs @ target + 0.1 * rng.normal(size=(num_steps, 64, 32))
    batches = (jnp.asarray(inputs, jnp.float32), jnp.asarray(outputs, jnp.float32))
    schedule = optax.cosine_decay_schedule(rate, num_steps)

    def run(direction):
        chain = optax.chain(direction, optax.scale_by_learning_rate(schedule))

        def step(carry, batch):
            w, state = carry
            x, y = batch
            value, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
            updates, state = chain.update(grad, state, w)
            return (w + updates, state), value

        start = jnp.zeros(target.shape, jnp.float32)
        return jax.lax.scan(step, (start, chain.init(start)), batches)[1]

    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
        full, eight = jax.jit(lambda: (run(transform), run(in_eight_bits(transform))))()
    first, last, last_eight = float(full[0]), float(full[-20:].mean()), float(eight[-20:].mean())
    assert last < 0.1 * first
    assert last_eight < 1.02 * last


def test_moments_that_are_not_finite_are_seen():
    """The step does not apply such an update; here nothing hides it."""
    codes, scales = encode(jnp.asarray([[1.0, np.nan]]), KEY, signed=True)
    assert np.isnan(decode(codes, scales, signed=True)).all()
