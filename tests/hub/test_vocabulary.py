import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.hub.vocabulary import add_tokens

RNG = np.random.default_rng(0)
EMBEDDING = RNG.standard_normal((12, 4)).astype(np.float32)
HEAD = RNG.standard_normal((4, 12)).astype(np.float32)


@pytest.mark.parametrize(("num_new", "num_rows"), [(1, 12), (2, 12), (5, 15)])
@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_the_mean_and_no_other_row_changes(num_new, num_rows, tied):
    """12 rows of which 10 are known tokens: two are to spare."""
    params = {"embedding_VD": jnp.asarray(EMBEDDING), "other": 1}
    if not tied:
        params["w_head_DV"] = jnp.asarray(HEAD)
    grown = add_tokens(params, 10, num_new)
    assert grown.keys() == params.keys()
    tables = [(grown["embedding_VD"], EMBEDDING)]
    tables += [] if tied else [(grown["w_head_DV"].T, HEAD.T)]
    for table, before in tables:
        assert table.shape == (num_rows, 4)
        new = slice(10, 10 + num_new)
        np.testing.assert_array_equal(table[:10], before[:10])
        np.testing.assert_array_equal(table[10 + num_new : 12], before[10 + num_new :])
        expected = np.broadcast_to(before[:10].astype(np.float64).mean(0), (num_new, 4))
        np.testing.assert_allclose(table[new], expected, atol=1e-6)


def test_the_bias_of_an_encoder_gets_its_mean_too():
    params = {"embedding_VD": jnp.ones((3, 2)), "masked_lm": {"b_V": jnp.array([1.0, 2.0, 6.0])}}
    grown = add_tokens(params, 3, 2)
    np.testing.assert_allclose(grown["masked_lm"]["b_V"], [1, 2, 6, 3, 3])
