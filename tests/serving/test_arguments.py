"""Flags that name a model."""

import argparse
import dataclasses

import pytest

from jaxtrain.serving import arguments


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser()
    arguments.add_model(parser)
    arguments.counts(parser)("--num_slots", 4, "N", "slots")
    return parser


def test_a_workdir_is_loaded(parser, chat_workdir, capsys):
    options = parser.parse_args([f"--workdir={chat_workdir}", "--max_len=33"])
    assert options.num_slots == 4
    model = arguments.load(options)
    said = capsys.readouterr().err
    assert model.name in said
    assert "float32, context 33 tokens, 1 device(s)" in said
    assert dataclasses.replace(model, recipe="fp8").computes_in == "bfloat16"


@pytest.mark.parametrize("flags", [[], ["--workdir=a", "--model=b"], ["--workdir="]])
def test_exactly_one_model_is_named(parser, flags):
    with pytest.raises(SystemExit):
        parser.parse_args(flags)


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "9999999999"])
def test_counts_are_whole_numbers_from_one(parser, value, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(["--workdir=a", f"--num_slots={value}"])
    assert "must be a whole number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "17", "x"])
def test_a_draft_proposes_from_1_to_16_tokens(value, capsys):
    parser = argparse.ArgumentParser()
    arguments.add_draft(parser)
    assert parser.parse_args(["--num_drafted=16"]).num_drafted == 16
    with pytest.raises(SystemExit):
        parser.parse_args([f"--num_drafted={value}"])
    assert f"{value} must be" in capsys.readouterr().err


def test_a_hub_model_has_no_steps(parser):
    options = parser.parse_args(["--model=a/b", "--step=3"])
    with pytest.raises(ValueError, match="--step is of a --workdir"):
        arguments.load(options)


def test_a_model_that_is_nowhere_is_named(parser):
    options = parser.parse_args(["--model=no such"])
    with pytest.raises(ValueError, match="neither a directory nor the name"):
        arguments.load(options)
