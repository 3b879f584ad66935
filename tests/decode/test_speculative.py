"""With a draft every request gets what it gets without one; only the number of passes differs."""

import dataclasses

import pytest
from flax import nnx

from jaxtrain.decode.draft import DraftModel
from jaxtrain.decode.engine import Engine, Request
from jaxtrain.decode.sampling import Sampling
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import split
from jaxtrain.precision.recipe import get_recipe
from tests.decode.conftest import CHUNK, CONFIG, MAX_LEN, NUM_SLOTS
from tests.decode.test_engine import GREEDY, answers, prompts

NUM_TOKENS = 3


def with_draft(decoder, draft, num_tokens=NUM_TOKENS):
    model, other = split(decoder), split(draft)
    return Engine(
        model,
        model.params,
        max_len=MAX_LEN,
        num_slots=NUM_SLOTS,
        never=(59, 60),
        chunk=CHUNK,
        draft=DraftModel(other, other.params, num_tokens),
    )


@pytest.fixture(scope="module")
def speculative(decoder):
    """Its draft is another model: narrower, without windows, its vocabulary not padded."""
    shape = dataclasses.replace(
        CONFIG, num_layers=1, d_model=16, window=None, global_every=None, vocab_multiple=1
    )
    recipe = get_recipe("float32")
    return with_draft(decoder, Decoder(shape, rngs=nnx.Rngs(1), recipe=recipe, isolated=False))


@pytest.fixture(scope="module")
def own_draft(decoder):
    return with_draft(decoder, decoder)


REQUESTS = {
    "greedy": [Request(ids, 5 + 4 * n, GREEDY) for n, ids in enumerate(prompts(7))],
    "sampled": [Request(ids, 9, Sampling(seed=n)) for n, ids in enumerate(prompts(12))],
    "filtered": [
        Request(ids, 11, Sampling(0.7, 8, 0.9, 0.01, 1.3, seed=n), stop_ids=(7, 20, 33))
        for n, ids in enumerate(prompts(8))
    ],
    "penalised": [Request(ids, 14, Sampling(0.0, repetition_penalty=1.5)) for ids in prompts(5)],
    "to_the_last_place": [Request([3, 1, 4], 100, GREEDY), Request([5] * 38, 9, GREEDY)],
    "top": [Request([9, 2], 8, Sampling(seed=3), num_top_logprobs=3)],
}


@pytest.mark.parametrize(
    ("draft", "kind"),
    [
        *(("speculative", kind) for kind in REQUESTS),
        ("own_draft", "greedy"),
        ("own_draft", "sampled"),
    ],
)
def test_answers_are_those_of_plain_decoding(engine, kind, draft, request):
    """Windows go round, more requests than slots, ends in the middle of a turn."""
    plain = answers(engine, REQUESTS[kind])
    found = answers(request.getfixturevalue(draft), REQUESTS[kind])
    for one, other in zip(plain, found, strict=True):
        assert other.ids == one.ids
        assert other.finish == one.finish
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
        assert [[i for i, _ in place] for place in other.top] == [
            [i for i, _ in place] for place in one.top
        ]


def counted(engine, requests):
    before = engine.num_drafted
    found = answers(engine, requests)
    accepted, proposed = (now - then for now, then in zip(engine.num_drafted, before, strict=True))
    return found, accepted, proposed


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=4)])
def test_a_draft_that_is_the_model_itself_is_always_right(own_draft, sampling):
    """24 tokens in turns of four: one of the model's own and three accepted ones each."""
    (answer,), accepted, proposed = counted(own_draft, [Request([3, 1, 4], 24, sampling)])
    assert len(answer.ids) == 24
    assert (accepted, proposed) == (18, 18)


def test_a_draft_that_is_wrong_costs_its_proposals_and_no_token(speculative):
    (answer,), accepted, proposed = counted(speculative, [Request([3, 1, 4], 24, GREEDY)])
    assert len(answer.ids) == 24
    assert 0 <= accepted < proposed
    assert (24 - accepted - 1) * NUM_TOKENS <= proposed <= (24 - accepted) * NUM_TOKENS


def test_an_engine_without_a_draft_has_drafted_nothing(engine):
    answers(engine, [Request([3], 2, GREEDY)])
    assert engine.num_drafted == (0, 0)
