"""Request bodies become answers to draw."""

import pytest

from jaxtrain.serving import requests


def test_defaults_are_those_of_the_api(text_model):
    parsed = requests.completion({"prompt": "red"}, text_model, 64)
    (ask,) = parsed.asks
    assert (ask.max_new_tokens, ask.sampling.temperature, ask.stop) == (16, 1.0, ())
    assert not parsed.is_streamed
    assert not parsed.gives_logprobs


def test_an_answer_without_a_length_may_fill_the_context(text_model):
    parsed = requests.chat({"messages": [{"role": "user", "content": "a"}]}, text_model, 64)
    assert len(parsed.asks[0].ids) + parsed.asks[0].max_new_tokens == 64


def test_samples_have_seeds_of_their_own_and_share_a_prompt(text_model):
    body = {"prompt": ["a", "b"], "n": 3, "seed": 2**32 - 1}
    parsed = requests.completion(body, text_model, 64)
    assert [ask.sampling.seed for ask in parsed.asks] == [2**32 - 1, 0, 1] * 2
    assert parsed.num_prompt_tokens == sum(len(text_model.prompt_ids(p)) for p in "ab")


def test_without_a_seed_requests_differ(text_model):
    seeds = {
        requests.completion({"prompt": "a"}, text_model, 64).asks[0].sampling.seed for _ in range(5)
    }
    assert len(seeds) > 1


def test_options_reach_the_template(text_model):
    body = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": 1}}
    assert requests.chat(body, text_model, 64).asks
    with pytest.raises(ValueError, match="chat_template_kwargs must be an object"):
        requests.chat(body | {"chat_template_kwargs": 3}, text_model, 64)


@pytest.mark.parametrize("field", ["presence_penalty", "echo", "suffix", "best_of"])
def test_what_is_not_supported_is_accepted_only_where_it_changes_nothing(text_model, field):
    neutral = {"presence_penalty": 0, "echo": False, "suffix": None, "best_of": 1}[field]
    assert requests.completion({"prompt": "a", field: neutral}, text_model, 64).asks
    with pytest.raises(ValueError, match=f"{field} is not supported"):
        requests.completion({"prompt": "a", field: 2}, text_model, 64)
