import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.train.state import add_tokens, initial_state, token_count


@pytest.mark.parametrize(
    ("start", "new"), [(0, 5), (2**32 - 1, 1), (2**32 - 1, 2**32 - 1), (10**13, 4_000_000)]
)
def test_add_tokens_counts_past_32_bits(start, new):
    words = jnp.array([start >> 32, start % 2**32], jnp.uint32)
    assert token_count(jax.jit(add_tokens)(words, jnp.uint32(new))) == start + new


def test_initial_state_starts_every_counter_at_zero_and_keys_from_the_seed():
    first, second = (initial_state({}, {}, (), seed) for seed in (0, 1))
    assert (int(first.step), int(first.skipped), token_count(first.tokens)) == (0, 0, 0)
    assert first.rng.dtype == jnp.uint32
    assert not np.array_equal(first.rng, second.rng)
