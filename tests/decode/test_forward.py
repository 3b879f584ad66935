"""Prompt and token passes are the training forward pass, layer kinds and filler notwithstanding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.decode.forward import Forward, take_apart
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import split
from jaxtrain.precision.recipe import get_recipe

IDS = jax.random.randint(jax.random.key(1), (2, 16), 0, 60)


@pytest.fixture(scope="module")
def expected(decoder):
    positions = jnp.broadcast_to(jnp.arange(16, dtype=jnp.int32)[None], IDS.shape)
    return jax.jit(decoder)(IDS, positions)


@pytest.fixture(scope="module")
def forward(decoder):
    model = split(decoder)
    return Forward(model), take_apart(model.params, decoder.config)


def test_a_prompt_gives_the_logits_after_its_last_token(forward, expected):
    run, params = forward
    length = jnp.array([7, 16], jnp.int32)
    found, _ = jax.jit(run.prompt)(params, IDS, length)
    np.testing.assert_allclose(found.logits_BV, expected[jnp.arange(2), length - 1], atol=1e-5)


def test_filler_after_a_prompt_changes_nothing(forward):
    run, params = forward
    length = jnp.array([7, 3], jnp.int32)
    prompt = jax.jit(run.prompt)
    other = jnp.where(jnp.arange(16)[None] < length[:, None], IDS, 5)
    np.testing.assert_array_equal(
        prompt(params, IDS, length)[0].logits_BV, prompt(params, other, length)[0].logits_BV
    )


def test_layers_are_taken_apart_without_change(decoder):
    params = split(decoder).params
    apart = take_apart(params, decoder.config)
    together = jax.tree.map(lambda *layers: jnp.stack(layers), *apart.layers)
    jax.tree.map(np.testing.assert_array_equal, together, dict(params["blocks"]))
    assert set(apart.top) == set(params) - {"blocks"}


def test_an_encoder_is_refused(decoder):
    config = dataclasses.replace(decoder.config, bidirectional=True, window=None, global_every=None)
    encoder = Decoder(config, rngs=nnx.Rngs(0), recipe=get_recipe("float32"))
    with pytest.raises(ValueError, match="an encoder does not write text"):
        Forward(split(encoder))
