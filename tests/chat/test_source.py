"""A model's template is found where models keep it, or chosen by name."""

import json

import pytest

from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.chat.source import TEMPLATE_FILE, chat_template, teach, template_source, turn_end_ids
from jaxtrain.tokenizer.special_tokens import CONFIG_FILE
from jaxtrain.tokenizer.training import Training


@pytest.fixture(scope="module")
def tokenizer():
    return Training("bpe", 261, num_reserved=0).train(["abc abd abe\n"] * 9)


def test_template_is_read_from_its_own_file_before_the_config(tmp_path):
    assert template_source(tmp_path) is None
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"chat_template": "b"}))
    assert template_source(tmp_path) == "b"
    (tmp_path / TEMPLATE_FILE).write_text("a")
    assert template_source(tmp_path) == "a"


def test_of_several_the_default_is_taken(tmp_path):
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"chat_template": several}))
    assert template_source(tmp_path) == "d"
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"chat_template": several[:1]}))
    with pytest.raises(ValueError, match="named tool_use, none of them 'default'"):
        template_source(tmp_path)
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"chat_template": 3}))
    with pytest.raises(ValueError, match="chat_template is int"):
        template_source(tmp_path)


def test_a_template_that_is_no_text_is_named(tmp_path):
    (tmp_path / TEMPLATE_FILE).write_bytes(b"{{ messages }} \xe9")
    with pytest.raises(ValueError, match=r"jinja is no chat template: not UTF-8 at byte 15; save"):
        template_source(tmp_path)


@pytest.mark.parametrize("name", BUILTIN)
def test_teaching_adds_the_control_tokens_and_moves_no_id(tokenizer, name):
    taught, source = teach(tokenizer, name)
    assert source == BUILTIN[name].source
    assert taught.encode("abc\n").tolist() == tokenizer.encode("abc\n").tolist()
    for token in BUILTIN[name].control_tokens:
        assert taught.control_id(token) in taught.special_token_ids
    again, _ = teach(taught, name)
    assert again.vocab_size == taught.vocab_size


def test_an_unknown_builtin_is_refused(tokenizer):
    with pytest.raises(ValueError, match="'chatgpt' must be one of chatml, llama3, seed"):
        teach(tokenizer, "chatgpt")


@pytest.mark.parametrize("name", BUILTIN)
def test_an_answer_ends_at_its_turn_and_at_the_end_of_text(tokenizer, name):
    taught, source = teach(tokenizer, name)
    expected = {taught.control_id("eos"), taught.control_id(BUILTIN[name].control_tokens[0])}
    assert set(turn_end_ids(source, taught)) == expected


def test_templates_print_the_tokenizers_own_tokens(tokenizer):
    template = chat_template("{{ bos_token }}|{{ eos_token }}|{{ unk_token }}", tokenizer)
    assert template.render([{"role": "user", "content": ""}]) == "<|bos|>|<|eos|>|"
