"""Latent attention against NumPy in float64 by the paper's equations, with every head expanded."""

import dataclasses

import numpy as np
import pytest
from filled import filled
from flax import nnx
from test_gqa import outputs, rotation

from jaxtrain.models.config import ModelConfig
from jaxtrain.models.mla import LatentAttention
from jaxtrain.precision.recipe import get_recipe

CONFIG = ModelConfig(
    vocab_size=64, num_layers=2, d_model=16, num_heads=3, num_kv_heads=3, head_dim=10, d_ff=12,
    kv_latent_dim=5, q_latent_dim=7, rope_head_dim=4, value_head_dim=6, rope_interleaved=True,
)  # fmt: skip
X = np.random.default_rng(0).standard_normal((2, 6, 16))
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8]])


def layer(**changes):
    config = dataclasses.replace(CONFIG, **changes)
    recipe = get_recipe("float32")

    def make():
        return LatentAttention(config, rngs=nnx.Rngs(0), recipe=recipe, constrain=lambda x, _: x)

    return filled(make), config, rotation(config, POSITIONS.astype(np.int32))


def normed(x, scale):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def turned(x_TNH, positions, interleaved):
    half = x_TNH.shape[-1] // 2
    turn = np.exp(1j * positions[:, None] * 10_000.0 ** (-np.arange(half) / half))[:, None]
    if interleaved:
        z = (x_TNH[..., 0::2] + 1j * x_TNH[..., 1::2]) * turn
    else:
        z = (x_TNH[..., :half] + 1j * x_TNH[..., half:]) * turn
    return np.concatenate([z.real, z.imag], -1)


def expected(made, config, x, positions):
    w = {
        name: np.asarray(getattr(made, name)[...], np.float64)
        for name in vars(made)
        if name.startswith("w_")
    }
    if config.q_latent_dim:
        latent = normed(x @ w["w_q_down_DR"], np.asarray(made.q_norm.scale[...], np.float64))
        q = np.einsum("tr,rnh->tnh", latent, w["w_q_up_RNH"])
    else:
        q = np.einsum("td,dnh->tnh", x, w["w_q_DNH"])
    c = normed(x @ w["w_down_DR"], np.asarray(made.norm.scale[...], np.float64))
    shared = turned((x @ w["w_k_rope_DH"])[:, None], positions, config.rope_interleaved)
    q = np.concatenate([q[..., :6], turned(q[..., 6:], positions, config.rope_interleaved)], -1)
    plain = np.einsum("tr,rnh->tnh", c, w["w_k_up_RNH"])
    k = np.concatenate([plain, np.repeat(shared, 3, axis=1)], -1)
    scores = np.einsum("tnh,snh->nts", q, k) * (config.attention_scale or 10**-0.5)
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    v = np.einsum("tr,rnh->tnh", c, w["w_v_up_RNH"])
    return np.einsum("nts,snh,nhd->td", p / p.sum(-1, keepdims=True), v, w["w_o_NHD"])


CASES = [
    {},
    {"q_latent_dim": None, "rope_interleaved": False},
    {"attention_scale": 0.9, "value_head_dim": None},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_output_is_that_of_numpy_in_the_row_and_from_a_cache(changes):
    made, config, by = layer(**changes)
    row_BTD, last_BD = outputs(made, X.astype(np.float32), by)
    for row in range(2):
        want = expected(made, config, X[row], POSITIONS[row])
        np.testing.assert_allclose(row_BTD[row], want, atol=2e-5)
        np.testing.assert_allclose(last_BD[row], want[-1], atol=2e-5)


def test_the_cache_of_a_token_is_its_latent_and_one_turned_key():
    made, _, _ = layer()
    assert made.entry_shapes == ((1, 5 + 4),)


def test_other_scores_come_of_neighbouring_pairs():
    out = []
    for interleaved in (False, True):
        made, _, by = layer(rope_interleaved=interleaved)
        out.append(outputs(made, X.astype(np.float32), by)[0])
    assert np.abs(np.asarray(out[0] - out[1])).max() > 1e-3
