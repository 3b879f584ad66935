"""Answers in text: ends and stop strings are no part of them, and every token is accounted for."""

import pytest

from jaxtrain.decode.sampling import Sampling
from jaxtrain.hub.model import HubModel
from jaxtrain.serving.answers import Ask, answer_all, chat_prompt, text_prompt
from jaxtrain.serving.model import from_hub

GREEDY = Sampling(temperature=0.0)


def ask_all(model, engine, asks):
    pieces = {number: [] for number in range(len(asks))}
    for number, piece in answer_all(model, engine, asks):
        pieces[number].append(piece)
    return [
        (
            "".join(piece.text for piece in each),
            [i for piece in each for i in piece.ids],
            each[-1].finish,
        )
        for each in pieces.values()
    ]


def test_text_is_what_the_ids_say(text_model, text_engine):
    asks = [Ask(text_prompt(text_model, "red"), 20, GREEDY, ignore_end=True)]
    ((text, ids, finish),) = ask_all(text_model, text_engine, asks)
    assert (text, len(ids), finish) == (text_model.tokenizer.decode(ids), 20, "length")


@pytest.mark.shared
@pytest.mark.parametrize(("prompt", "begins"), [("Once upon", " a time"), ("", "Once upon a time")])
def test_the_rest_of_a_text_joins_it(shared_dir, prompt, begins):
    """A tokenizer that takes the first space off a text must not glue prompt and answer."""
    model = from_hub(HubModel(shared_dir / "data/model-stories260k/hf"))
    engine = model.engine(max_len=32, num_slots=1)
    asks = [Ask(text_prompt(model, prompt), 8, GREEDY, goes_on=True)]
    ((text, _, _),) = ask_all(model, engine, asks)
    assert text.startswith(begins)


def test_a_stop_string_ends_the_answer_and_its_tokens(text_model, text_engine):
    prompt = text_prompt(text_model, "red")
    ((text, ids, _),) = ask_all(text_model, text_engine, [Ask(prompt, 20, GREEDY, ignore_end=True)])
    stop = text[5:8]
    asks = [
        Ask(prompt, 20, GREEDY, stop=stop, ignore_end=True),
        Ask(prompt, 20, GREEDY, ignore_end=True),
    ]
    stopped, free = ask_all(text_model, text_engine, asks)
    assert stopped[0] == text[: text.index(stop)]
    assert stopped[2] == "stop"
    assert stopped[1] == ids[: len(stopped[1])]
    assert stop in text_model.tokenizer.decode(stopped[1])
    assert free[0] == text


def test_an_end_token_is_drawn_but_not_shown(text_model, text_engine):
    end = text_model.tokenizer.control_id("<|end|>")
    # At this temperature every id is about as likely, so that some answer meets the end early.
    asks = [Ask([5], 60, Sampling(temperature=50.0, seed=seed)) for seed in range(30)]
    found = ask_all(text_model, text_engine, asks)
    ended = [(text, ids) for text, ids, finish in found if finish == "stop"]
    assert ended
    for text, ids in ended:
        assert ids[-1] in text_model.end_ids
        assert text == text_model.tokenizer.decode(ids[:-1])
    assert any(ids[-1] == end for _, ids in ended)


def test_prompts_come_from_the_models_own_template(text_model):
    ids = chat_prompt(text_model, [{"role": "user", "content": "red <|end|>"}])
    assert text_model.tokenizer.decode(ids) == "<|bos|><|user|>red <|end|><|end|><|assistant|>"
    assert ids.count(text_model.tokenizer.control_id("<|end|>")) == 1
    assert ids.count(text_model.tokenizer.control_id("bos")) == 1


@pytest.mark.parametrize("prompt", [None, 3, ["a"]])
def test_a_prompt_must_be_a_text(text_model, prompt):
    with pytest.raises(ValueError, match="prompt must be a text"):
        text_prompt(text_model, prompt)
