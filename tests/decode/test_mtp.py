"""Modules of multi-token prediction propose what they predict of the whole text, and cost no token.

What they propose is found once more by the training pass over each text so far, without a cache.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.decode.engine import Engine, Request
from jaxtrain.decode.forward import Forward
from jaxtrain.decode.mtp import DraftModules
from jaxtrain.decode.sampling import Sampling
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import flatten, nest, split
from jaxtrain.precision.recipe import get_recipe
from tests.decode.test_engine import GREEDY, answers

MAX_LEN, NUM_SLOTS = 32, 3
V = 61  # of which the last one is never drawn
SHAPE = {"vocab_size": V, "d_model": 16, "num_heads": 2, "head_dim": 8, "d_ff": 24}
CONFIGS = {
    "two": ModelConfig(**SHAPE, num_layers=2, num_kv_heads=1, num_mtp_layers=2),
    "latent_experts": ModelConfig(
        **SHAPE, num_layers=2, num_kv_heads=2, num_mtp_layers=1, kv_latent_dim=8, rope_head_dim=4,
        value_head_dim=6, num_experts=4, num_experts_per_token=2, d_ff_expert=12,
        num_dense_layers=1,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Compiling costs more than anything else here; what is computed stays the same."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def abstract_model(config):
    recipe = get_recipe("float32")
    return split(
        nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), recipe=recipe, isolated=False))
    )


@functools.cache
def make_model(name, of_blocks=0.17):
    """Modules that know the model but for what blocks add, here and there, of that spread.

    Without blocks the model's head takes the norm of the last token's embedding; so it does of a
    module whose join passes on the next token's.
    """
    config = CONFIGS[name]
    model = abstract_model(config)
    rng = np.random.default_rng(0)
    drawn = {}
    for path, leaf in flatten(model.params).items():
        if path.endswith("scale"):
            drawn[path] = jnp.ones_like(leaf, leaf.dtype)
        else:
            spread = of_blocks if "block" in path else 1.0
            drawn[path] = jnp.asarray(rng.normal(0, spread, leaf.shape), leaf.dtype)
    drawn["mtp.w_join_RD"] = jnp.tile(jnp.eye(32, 16)[None], (config.num_mtp_layers, 1, 1))
    return model, nest(drawn)


@functools.cache
def engine(name, num_tokens, of_blocks=0.17):
    model, params = make_model(name, of_blocks)
    draft = DraftModules(num_tokens) if num_tokens else None
    return Engine(
        model, params, max_len=MAX_LEN, num_slots=NUM_SLOTS, never=(V - 1,), chunk=3, draft=draft
    )


def prompts(num):
    rng = np.random.default_rng(1)
    return [rng.integers(0, V - 1, rng.integers(1, 9)).tolist() for _ in range(num)]


REQUESTS = {
    "greedy": [Request(ids, 4 + 3 * n, GREEDY) for n, ids in enumerate(prompts(7))],
    "sampled": [Request(ids, 9, Sampling(seed=n)) for n, ids in enumerate(prompts(8))],
    "filtered": [
        Request(ids, 12, Sampling(0.7, 5, 0.9, 0.01, 1.3, seed=n), (3,), num_top_logprobs=3)
        for n, ids in enumerate(prompts(8))
    ],
    "to_the_last_place": [Request([3, 1, 4], 100, GREEDY), Request([5] * 30, 9, GREEDY)],
}


@pytest.mark.parametrize(
    ("name", "num_tokens", "kind"),
    [
        *(("two", 4, kind) for kind in REQUESTS),  # beyond the last module
        ("two", 1, "sampled"),  # not all of them
        ("latent_experts", 2, "greedy"),
    ],
)
def test_answers_are_those_of_plain_decoding(name, num_tokens, kind):
    """More requests than slots, ends in the middle of a turn."""
    plain = answers(engine(name, None), REQUESTS[kind])
    found = answers(engine(name, num_tokens), REQUESTS[kind])
    for one, other in zip(plain, found, strict=True):
        assert (other.ids, other.finish) == (one.ids, one.finish)
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
        assert [[i for i, _ in at] for at in other.top] == [[i for i, _ in at] for at in one.top]


def proposals(name, num_tokens):
    """A function of (row of ids, L): what follows place L, after x_0, which is there."""
    model, params = make_model(name)
    num_modules = CONFIGS[name].num_mtp_layers

    @jax.jit
    def of(row_1T, length):
        decoder = model.bind(params, {})
        at_1T = jnp.arange(row_1T.shape[1], dtype=jnp.int32)[None]
        h_1TD, given_1TD, found = decoder.hidden(row_1T, at_1T), None, []
        for number in range(num_tokens):
            depth = min(number, num_modules - 1)
            last = length - 1 + number - depth
            if number > depth:  # its own output stands for the model's at one place more
                h_1TD = h_1TD.at[:, last].set(given_1TD[:, last - 1])
            elif depth:
                h_1TD = given_1TD
            next_1T = jnp.roll(row_1T, -1 - depth, axis=1)
            given_1TD = decoder.predict_further(depth, h_1TD, next_1T, at_1T + depth + 1)
            logits_V = decoder.logits(given_1TD)[0, last, : V - 1]
            found.append(jnp.argmax(logits_V).astype(jnp.int32))
            row_1T = row_1T.at[0, length + number + 1].set(found[-1])
        return jnp.stack(found)

    return of


@pytest.mark.parametrize(("name", "num_tokens"), [("two", 4), ("latent_experts", 2)])
def test_proposals_are_what_the_modules_predict_of_the_text_so_far(name, num_tokens):
    """Counted turn by turn, whatever was proposed and not kept before."""
    speculative, of = engine(name, num_tokens), proposals(name, num_tokens)
    before = np.array(speculative.num_drafted)
    requests = [Request(ids, 20, GREEDY) for ids in prompts(5)]
    wanted = np.zeros(2, int)
    for request, answer in zip(requests, answers(speculative, requests), strict=True):
        text = [*request.ids, *answer.ids]
        at = len(request.ids)
        while at < len(text):
            row = (
                jnp.zeros((1, MAX_LEN + 8), jnp.int32)
                .at[0, : at + 1]
                .set(jnp.asarray(text[: at + 1], jnp.int32))
            )
            follow = text[at + 1 : at + 1 + num_tokens]
            agrees = np.asarray(of(row, jnp.int32(at)))[: len(follow)] == follow
            accepted = int(np.cumprod(agrees).sum())
            at += 1 + accepted
            wanted += accepted, num_tokens if at < len(text) else accepted
    assert tuple(speculative.num_drafted - before) == tuple(wanted)

    assert 0.1 < wanted[0] / wanted[1] < 0.9


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=4)])
def test_modules_that_know_the_model_are_always_right(sampling):
    """24 tokens in turns of four: one of the model's own and three accepted ones each."""
    right = engine("two", 3, of_blocks=0.0)
    before = np.array(right.num_drafted)
    (answer,) = answers(right, [Request([3, 1, 4], 24, sampling)])
    assert len(answer.ids) == 24
    assert tuple(right.num_drafted - before) == (18, 18)


def test_a_model_without_modules_is_refused():
    config = dataclasses.replace(CONFIGS["two"], num_mtp_layers=0)
    with pytest.raises(ValueError, match=r"no modules of multi-token prediction \(num_mtp_layers"):
        DraftModules(1).proposer(Forward(abstract_model(config)))


@pytest.mark.parametrize("num_tokens", [0, 17])
def test_modules_that_propose_nothing_or_too_many_are_refused(num_tokens):
    with pytest.raises(ValueError, match=f"from 1 to 16 tokens in a turn, not {num_tokens}"):
        DraftModules(num_tokens).proposer(Forward(make_model("two")[0]))
