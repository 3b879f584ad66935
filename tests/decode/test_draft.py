"""A smaller model proposes how it would go on itself, in ids of the other."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.decode.draft import DraftModel, Pair, Start
from jaxtrain.decode.forward import Forward
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import split
from jaxtrain.precision.recipe import get_recipe
from tests.models.filled import filled, quick

PROMPT = [3, 1, 4, 1, 5]
FIRST, NUM_TOKENS = 7, 3  # drawn by the model, and proposed behind it


def make(vocab_size):
    config = ModelConfig(
        vocab_size=vocab_size, num_layers=1, d_model=16, num_heads=2, num_kv_heads=2, head_dim=8,
        d_ff=16, attention_block=4,
    )  # fmt: skip
    return Decoder(config, rngs=nnx.Rngs(1), recipe=get_recipe("float32"), isolated=False)


def greedy(logits_BV, seen_BV, number):
    del seen_BV, number
    return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)


@pytest.mark.parametrize("vocab_size", [12, 31])
def test_proposals_are_the_drafts_own_way_on_in_the_ids_of_the_model(vocab_size):
    """Whose vocabulary may have more ids or fewer; ids that it lacks are not proposed."""
    drafting, model = filled(lambda: make(20)), split(nnx.eval_shape(lambda: make(vocab_size)))
    of_draft = split(drafting)
    draft = DraftModel(of_draft, of_draft.params, NUM_TOKENS)
    proposer = draft.proposer(Forward(model))
    params = Pair(None, draft.parameters(model.params))
    row, length = jnp.asarray([PROMPT], jnp.int32), jnp.asarray([len(PROMPT)], jnp.int32)

    def run(params):
        prompt = proposer.prompt(params, row, length, jnp.zeros((1, len(PROMPT), 16)))
        state = proposer.admitted(proposer.empty(1, 16), prompt, jnp.int32(0), length[0])
        seen = jnp.zeros((1, vocab_size), bool)
        start = Start(jnp.array([FIRST], jnp.int32), seen, length, jnp.zeros(1, jnp.int32))
        return proposer.proposed(params, state, start, greedy)[0][0]

    run, logits = quick(run), quick(drafting)
    text = [*PROMPT, FIRST]
    for _ in range(NUM_TOKENS):
        ids = [*text, *[0] * (len(PROMPT) + NUM_TOKENS - len(text))]  # one compilation
        places = jnp.arange(len(ids), dtype=jnp.int32)[None]
        after = logits(jnp.asarray([ids], jnp.int32), places)[0, len(text) - 1]
        text.append(int(np.argmax(after[:vocab_size])))
    assert run(params).tolist() == text[len(PROMPT) :]


@pytest.mark.parametrize("num_tokens", [0, 17])
def test_a_draft_that_proposes_nothing_or_too_much_is_refused(num_tokens):
    model = split(nnx.eval_shape(lambda: make(20)))
    with pytest.raises(ValueError, match=f"from 1 to 16 tokens in a turn, not {num_tokens}"):
        DraftModel(model, model.params, num_tokens).proposer(Forward(model))
