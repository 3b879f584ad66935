"""A small set of parameters with one of each kind, and seeded gradients for it."""

import jax
import numpy as np
import pytest

AXES = {
    "embed": "VD",
    "blocks": {
        "norm": "LD",
        "w_q": "LDNH",
        "b_q": "LNH",
        "w_o": "LNHD",
        "w_up": "LDF",
        "w_down": "LFD",
    },
    "final_norm": "D",
    "head": "DV",
}
SIZES = {"V": 16, "D": 8, "L": 2, "N": 2, "H": 6, "F": 20}


def normal_tree(seed: int, scale: float = 1.0):
    """Normal float32 values for every parameter."""
    rng = np.random.default_rng(seed)

    def leaf(letters):
        shape = tuple(SIZES[letter] for letter in letters)
        return (scale * rng.normal(size=shape)).astype(np.float32)

    return jax.tree.map(leaf, AXES)


@pytest.fixture(scope="session")
def axes():
    return AXES


@pytest.fixture(scope="session")
def params():
    return normal_tree(0)


@pytest.fixture(scope="session")
def grads_of_steps():
    """Ten gradients of changing size: late ones must not drown in early ones."""
    return [normal_tree(100 + step, scale=0.3 + 0.2 * step) for step in range(10)]
