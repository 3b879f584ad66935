import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.decode.sample import sample


def counter(row):
    """Puts nearly all weight on the previous id plus one."""
    return 20.0 * jax.nn.one_hot(row + 1, 10)


def test_sample_greedy_follows_the_most_likely_id():
    assert sample(counter, [3], 4, jax.random.key(0), 0.0, stop_id=-1) == [4, 5, 6, 7]


def test_sample_stops_before_the_stop_id():
    assert sample(counter, [3], 9, jax.random.key(0), 0.0, stop_id=6) == [4, 5]


def test_sample_draws_from_the_tempered_distribution():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])

    def fixed(row):
        return jnp.broadcast_to(jnp.log(jnp.float32(probabilities)), (*row.shape, 4))

    ids = sample(fixed, [0], 400, jax.random.key(1), 0.5, stop_id=-1)
    expected = probabilities**2 / np.sum(probabilities**2)
    found = np.bincount(ids, minlength=4) / 400
    np.testing.assert_allclose(found, expected, atol=3 * np.sqrt(0.25 / 400))


def test_sample_needs_a_prompt():
    with pytest.raises(ValueError, match="at least one token"):
        sample(counter, [], 3, jax.random.key(0), 0.0, stop_id=-1)
