"""What requests get: the trainer's probabilities, their own tokens whatever runs beside them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.decode.engine import Emitted, Engine, Request
from jaxtrain.decode.sampling import Sampling
from jaxtrain.models.parameters import split

GREEDY = Sampling(temperature=0.0)


def prompts(num: int, longest: int = 12) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 59, rng.integers(1, longest)).tolist() for _ in range(num)]


def answers(engine: Engine, requests: list[Request]) -> list[Emitted]:
    """All that each request got, put together."""
    parts: dict[int, list[Emitted]] = {index: [] for index in range(len(requests))}
    for emitted in engine.generate(iter(requests)):
        parts[emitted.request].append(emitted)
    return [
        Emitted(
            index,
            list(itertools.chain(*(part.ids for part in each))),
            list(itertools.chain(*(part.logprobs for part in each))),
            list(itertools.chain(*(part.top for part in each))),
            each[-1].finish,
        )
        for index, each in parts.items()
    ]


def test_logprobs_are_those_of_the_training_forward_pass(engine, logprobs):
    requests = [
        Request(ids, 3 + 2 * index, Sampling(seed=index), num_top_logprobs=3)
        for index, ids in enumerate(prompts(8))
    ]
    for request, answer in zip(requests, answers(engine, requests), strict=True):
        expected = logprobs([*request.ids, *answer.ids])[len(request.ids) - 1 : -1]
        chosen = [expected[place, each] for place, each in enumerate(answer.ids)]
        np.testing.assert_allclose(answer.logprobs, chosen, atol=1e-4)
        for place, top in enumerate(answer.top):
            best = np.argsort(-np.asarray(expected[place]))[:3]
            assert [each for each, _ in top] == best.tolist()
            np.testing.assert_allclose([p for _, p in top], expected[place][best], atol=1e-4)


def test_greedy_takes_the_likeliest_id_at_each_place(engine, logprobs):
    (answer,) = answers(engine, [Request([3, 1, 4], 20, GREEDY)])
    expected = logprobs([3, 1, 4, *answer.ids])[2:-1, :59]
    assert answer.ids == np.argmax(expected, axis=-1).tolist()


@pytest.mark.parametrize("sampling", [Sampling(seed=5), Sampling(seed=5, top_p=0.8), GREEDY])
def test_a_request_gets_the_same_alone_and_among_others(engine, sampling):
    request = Request([7, 7, 2], 12, sampling)
    (alone,) = answers(engine, [request])
    others = [
        Request(ids, 2 + 3 * n, Sampling(seed=n, top_k=5 if n % 2 else None))
        for n, ids in enumerate(prompts(6))
    ]
    for place in (0, 2, 6):
        mixed = answers(engine, [*others[:place], request, *others[place:]])[place]
        assert mixed.ids == alone.ids
        np.testing.assert_array_equal(mixed.logprobs, alone.logprobs)


def test_seeds_differ_and_repeat(engine):
    requests = [Request([5], 12, Sampling(seed=seed)) for seed in (1, 2, 1)]
    one, two, again = (answer.ids for answer in answers(engine, requests))
    assert one == again != two


def test_samples_follow_the_models_distribution(engine, logprobs):
    requests = [Request([9, 9], 1, Sampling(seed=seed)) for seed in range(600)]
    found = np.bincount([answer.ids[0] for answer in answers(engine, requests)], minlength=61)
    expected = np.exp(np.asarray(logprobs([9, 9])[-1], np.float64))
    expected[59:] = 0
    expected /= expected.sum()
    sigma = np.sqrt(600 * expected * (1 - expected)) + 1
    assert np.all(np.abs(found - 600 * expected) < 5 * sigma)


def test_an_answer_ends_with_its_stop_id(engine):
    (free,) = answers(engine, [Request([3, 1, 4], 20, GREEDY)])
    stop = free.ids[5]
    (stopped,) = answers(engine, [Request([3, 1, 4], 20, GREEDY, stop_ids=(60, stop))])
    assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
    assert (stopped.finish, free.finish) == ("stop", "length")


def test_an_answer_is_cut_where_the_cache_ends(engine):
    (answer,) = answers(engine, [Request([1] * 35, 100, GREEDY)])
    assert len(answer.ids) == 5
    assert answer.finish == "length"


def test_ids_outside_the_tokenizer_are_never_drawn(engine):
    requests = [Request([n], 30, Sampling(temperature=50.0, seed=n)) for n in range(9)]
    assert max(max(answer.ids) for answer in answers(engine, requests)) < 59


def test_repetition_penalty_counts_the_prompt(engine, logprobs):
    """A penalty beyond all logits leaves only ids that have not occurred."""
    sampling = Sampling(temperature=0.0, repetition_penalty=1e6)
    (answer,) = answers(engine, [Request([2, 3], 25, sampling)])
    positive = np.asarray(logprobs([2, 3, *answer.ids]))  # all log-probabilities are below 0
    assert positive.max() < 0
    assert len({2, 3, *answer.ids}) == 27


def test_a_cancelled_request_is_heard_of_no_more(engine):
    keep, drop = engine.submit(Request([1], 30, GREEDY)), engine.submit(Request([2], 30, GREEDY))
    waiting = [engine.submit(Request([3], 30, GREEDY)) for _ in range(3)][-1]
    engine.step()
    engine.cancel(drop)
    engine.cancel(waiting)
    seen = set()
    while engine.is_busy:
        seen |= {emitted.request for emitted in engine.step()}
    assert keep in seen
    assert not seen & {drop, waiting}


def test_nan_of_one_request_does_not_reach_the_next_in_its_slot(engine):
    (clean,) = answers(engine, [Request([4, 2], 10, GREEDY)])
    poisoned = jax.tree.map(lambda entry: jnp.full_like(entry, jnp.nan), engine._state.cache)
    engine._state = engine._state._replace(cache=poisoned)
    assert answers(engine, [Request([4, 2], 10, GREEDY)])[0].ids == clean.ids


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([], 5), "the prompt has 0 tokens, but must have from 1 to 39"),
        (Request([1] * 40, 5), "the prompt has 40 tokens"),
        (Request([1], 0), "max_new_tokens=0 must be at least 1"),
        (Request([61], 5), "the prompt has id 61, not below 61"),
        (Request([-1], 5), "the prompt has id -1"),
        (Request([1], 5, stop_ids=range(17)), "17 stop ids are more than 16"),
        (Request([1], 5, num_top_logprobs=21), "num_top_logprobs=21 must be from 0 to 20"),
    ],
)
def test_an_impossible_request_is_refused(engine, request_, message):
    with pytest.raises(ValueError, match=message):
        engine.submit(request_)
    assert not engine.is_busy


def test_generate_needs_an_idle_engine(engine):
    engine.submit(Request([1], 5))
    with pytest.raises(ValueError, match="the engine is at work"):
        next(engine.generate(iter([])))


@pytest.mark.parametrize("options", [{"max_len": 1}, {"num_slots": 0}, {"chunk": 0}])
def test_an_impossible_engine_is_refused(decoder, options):
    model = split(decoder)
    with pytest.raises(ValueError, match="must be at least 2"):
        Engine(model, model.params, **{"max_len": 9, "num_slots": 1} | options)
