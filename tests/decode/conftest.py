"""One small model with windowed and global layers, whose compiled engine tests share."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxtrain.decode.engine import Engine
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import split
from jaxtrain.precision.recipe import get_recipe
from tests.engines import made_idle

CONFIG = ModelConfig(
    vocab_size=61, num_layers=3, d_model=32, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48,
    window=5, global_every=3, attention_block=4, vocab_multiple=16,
)  # fmt: skip
NUM_SLOTS, MAX_LEN, CHUNK = 3, 40, 4


def make_model(recipe: str = "float32") -> Decoder:
    return Decoder(CONFIG, rngs=nnx.Rngs(0), recipe=get_recipe(recipe), isolated=False)


@pytest.fixture(scope="session")
def decoder() -> Decoder:
    return make_model()


@pytest.fixture(scope="session")
def logprobs(decoder):
    """The trainer's forward pass: log-probabilities [T, V] of a row of ids."""

    @jax.jit
    def run(row_1T):
        positions_1T = jnp.arange(row_1T.shape[1], dtype=jnp.int32)[None]
        return jax.nn.log_softmax(decoder(row_1T, positions_1T)[0])

    def of(ids):  # filled up: one compilation
        row = jnp.zeros((1, MAX_LEN), jnp.int32).at[0, : len(ids)].set(jnp.array(ids, jnp.int32))
        return run(row)[: len(ids)]

    return of


@pytest.fixture(scope="session")
def shared_engine(decoder) -> Engine:
    model = split(decoder)
    return Engine(
        model, model.params, max_len=MAX_LEN, num_slots=NUM_SLOTS, never=(59, 60), chunk=CHUNK
    )


@pytest.fixture
def engine(shared_engine) -> Engine:
    """Idle, whatever the test before left."""
    return made_idle(shared_engine)
