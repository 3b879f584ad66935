import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxtrain.lora.fingerprint import fingerprint


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(0).standard_normal((4, 6, 8)).astype(np.float32)


def test_fingerprint_is_the_same_however_the_array_is_split(values):
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))
    specs = [P(), P("a"), P(None, "a", "b"), P("b", None, "a")]
    found = {fingerprint(jax.device_put(values, NamedSharding(mesh, spec))) for spec in specs}
    assert found == {fingerprint(jnp.asarray(values))}


def test_any_change_of_content_changes_the_fingerprint(values):
    flipped = values.copy()
    flipped.view(np.uint32)[1, 2, 3] ^= 1
    swapped = values.copy()
    swapped[0, 0, [0, 1]] = swapped[0, 0, [1, 0]]
    others = [flipped, swapped, values[::-1].copy(), -values, values.astype(jnp.bfloat16)]
    zeros = [np.zeros(shape, np.float32) for shape in ((4, 6), (6, 4, 2))]
    found = [fingerprint(jnp.asarray(x)) for x in (values, *others, *zeros)]
    assert len(set(found)) == len(found)
    assert all(len(each) == 16 for each in found)
