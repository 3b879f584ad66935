"""Answers drawn for rows of prompts."""

import dataclasses

import pytest

from jaxtrain.decode.sampling import Sampling
from jaxtrain.serving.answers import answer_all, chat_prompt
from jaxtrain.serving.drawing import Drawing, whole_answers

DRAWING = Drawing(Sampling(seed=5), 2, 6, (), True, None, 64, 4)


def test_samples_differ_by_their_seeds_alone(text_model):
    first, second = DRAWING.asks(text_model, {"prompt": "red"})
    assert second == dataclasses.replace(first, sampling=Sampling(seed=6))
    assert first.ids == chat_prompt(text_model, [{"role": "user", "content": "red"}])


def test_whole_answers_are_the_pieces_joined(text_model, text_engine):
    asks = dict(zip("ab", DRAWING.asks(text_model, {"prompt": "red"}), strict=True))
    found = dict(whole_answers(text_model, text_engine, asks))
    texts = {0: "", 1: ""}
    for number, piece in answer_all(text_model, text_engine, asks.values()):
        texts[number] += piece.text
    assert [found[key]["text"] for key in "ab"] == list(texts.values())
    assert all(1 <= each["num_tokens"] <= 6 and each["logprob_sum"] < 0 for each in found.values())


def test_a_prompt_that_leaves_no_room_is_refused(text_model):
    tight = dataclasses.replace(DRAWING, max_len=3)
    with pytest.raises(ValueError, match="must have from 1 to 2: prompt and answer share"):
        tight.asks(text_model, {"prompt": "red fox"})
