"""What requests get: the trainer's probabilities, their own tokens whatever runs beside them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.decode.engine import Emitted, Engine, NotFinite, Request
from jaxtrain.decode.sampling import Sampling
from jaxtrain.models.parameters import split
from tests.decode.conftest import MAX_LEN, make_model

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
            best = np.argsort(-np.asarray(expected[place][:59]))[:3]
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


def test_a_request_whose_logits_are_nan_ends_and_the_others_go_on(engine):
    (clean,) = answers(engine, [Request([4, 2], 10, GREEDY)])
    good, bad = engine.submit(Request([4, 2], 10, GREEDY)), engine.submit(Request([4], 10, GREEDY))
    engine._fill_slots()
    broken = engine._state.logits_BV.at[1].set(jnp.nan)
    engine._state = engine._state._replace(logits_BV=broken)
    ids = {good: [], bad: []}
    finish = {}
    while engine.is_busy:
        for emitted in engine.step():
            ids[emitted.request] += emitted.ids
            finish[emitted.request] = emitted.finish
    assert ids == {good: clean.ids, bad: []}
    assert finish == {good: "length", bad: "failed"}


def test_a_model_with_nan_weights_is_said_to_be_damaged(decoder):
    model = split(decoder)
    params = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), model.params)
    broken = Engine(model, params, max_len=MAX_LEN, num_slots=1)
    with pytest.raises(NotFinite, match="request 0: after 0 more tokens the model's logits"):
        list(broken.generate([Request([4, 2], 10, Sampling())]))


@pytest.mark.parametrize("length", [MAX_LEN - 1, MAX_LEN - 2])
def test_a_prompt_may_fill_all_but_the_last_place(engine, logprobs, length):
    ids = np.random.default_rng(3).integers(0, 59, length).tolist()
    (answer,) = answers(engine, [Request(ids, 9, GREEDY)])
    expected = np.asarray(logprobs([*ids, *answer.ids]))[length - 1 : -1, :59]
    assert answer.ids == np.argmax(expected, axis=-1).tolist()
    assert (len(answer.ids), answer.finish) == (MAX_LEN - length, "length")


def test_only_ids_of_the_tokenizer_are_among_the_likeliest(engine):
    requests = [Request([n], 9, Sampling(seed=n), num_top_logprobs=20) for n in range(9)]
    for answer in answers(engine, requests):
        assert max(each for top in answer.top for each, _ in top) < 59


def test_wishes_of_other_requests_change_nothing(engine):
    """Sorting and reporting run in programs of their own, with whatever asks for them."""
    request = Request([7, 7, 2], 12, Sampling(temperature=0.9, repetition_penalty=1.3, seed=4))
    others = [
        Request([5], 12, Sampling(top_p=0.5, min_p=0.1, seed=1), num_top_logprobs=20),
        Request([6, 1], 3, Sampling(temperature=0.0), num_top_logprobs=1),
    ]
    (alone,) = answers(engine, [request])
    for place in range(3):
        mixed = answers(engine, [*others[:place], request, *others[place:]])[place]
        assert (mixed.ids, mixed.logprobs) == (alone.ids, alone.logprobs)


def test_logprobs_in_bfloat16_are_near_those_of_the_training_forward_pass():
    """Mean difference below 2e-2 (a bfloat16 has 8 bits), over 32 answers scored anew."""
    decoder = make_model("bfloat16")
    model = split(decoder)
    engine = Engine(model, model.params, max_len=MAX_LEN, num_slots=8)
    requests = [Request(ids, 16, Sampling(seed=n)) for n, ids in enumerate(prompts(32))]
    rows = np.zeros((32, MAX_LEN), np.int32)
    drawn = answers(engine, requests)
    for row, request, answer in zip(rows, requests, drawn, strict=True):
        row[: len(request.ids) + len(answer.ids)] = [*request.ids, *answer.ids]
    positions = np.broadcast_to(np.arange(MAX_LEN, dtype=np.int32), rows.shape)
    scored = jax.nn.log_softmax(jax.jit(decoder)(rows, positions).astype(jnp.float32))
    differences = [
        abs(logprob - float(scored[index, len(request.ids) - 1 + place, each]))
        for index, (request, answer) in enumerate(zip(requests, drawn, strict=True))
        for place, (each, logprob) in enumerate(zip(answer.ids, answer.logprobs, strict=True))
    ]
    assert len(differences) == 32 * 16
    assert np.mean(differences) < 2e-2


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
