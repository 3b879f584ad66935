"""The equations once more in NumPy; parity with published code is in hub/families."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from filled import filled, parameters, quick
from flax import nnx

from jaxtrain.models import rope
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.mtp import PredictionModule
from jaxtrain.models.parameters import flatten, split
from jaxtrain.precision.recipe import get_recipe

CONFIG = ModelConfig(
    vocab_size=20, num_layers=1, d_model=16, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=24,
    num_mtp_layers=2,
)  # fmt: skip
RECIPE = get_recipe("float32")
IDS = jnp.asarray(np.random.default_rng(0).integers(0, 20, (2, 6)), jnp.int32)
POSITIONS = jnp.tile(jnp.arange(6, dtype=jnp.int32)[None], (2, 1))


def normed(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG.norm_eps)


def test_block_takes_both_normed_halves_joined_with_the_embedding_first():
    def make():
        return PredictionModule(CONFIG, rngs=nnx.Rngs(0), recipe=RECIPE, constrain=lambda x, _: x)

    module = filled(make)
    p = parameters(module)
    rng = np.random.default_rng(1)
    h, embedded = (rng.standard_normal((2, 6, 16)) * 3 for _ in range(2))
    halves = [normed(embedded) * p["embedding_norm.scale"], normed(h) * p["hidden_norm.scale"]]
    joined = np.concatenate(halves, axis=-1) @ p["w_join_RD"]

    @quick
    def run(h, embedded, joined):
        by = rope.rotation(CONFIG, POSITIONS)
        out = module(h, embedded, by, None, None, implementation="chunked")
        block = module.block(joined, by, None, None, window=None, implementation="chunked")
        return out, block

    out, block = run(*(jnp.asarray(x, jnp.float32) for x in (h, embedded, joined)))
    np.testing.assert_allclose(out, normed(np.asarray(block)) * p["final_norm.scale"], atol=2e-5)


def test_each_depth_has_its_own_module():
    made = filled(lambda: Decoder(CONFIG, rngs=nnx.Rngs(0), recipe=RECIPE))

    @quick
    def run():
        hidden = made.hidden(IDS, POSITIONS)
        return [made.predict_further(depth, hidden, IDS, POSITIONS) for depth in range(2)]

    first, second = run()
    assert float(jnp.abs(first - second).max()) > 0.1


def test_each_depth_starts_from_a_key_of_its_own():
    wide = dataclasses.replace(CONFIG, d_model=64)
    make = quick(lambda: split(Decoder(wide, rngs=nnx.Rngs(0), recipe=RECIPE)).params)
    w_join = np.asarray(flatten(make())["mtp.w_join_RD"]).reshape(2, -1)
    assert abs(np.corrcoef(w_join)[0, 1]) < 0.1
    np.testing.assert_allclose(w_join.std(axis=1), 128**-0.5, rtol=0.03)
