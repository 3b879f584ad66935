import json

import pytest

from jaxtrain.tokenizer import special_tokens


def test_roles_are_read_in_every_form_that_transformers_writes(tmp_path):
    config = {"bos_token": None, "eos_token": {"content": "</s>", "lstrip": False}, "x": 1}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "old", "additional_special_tokens": ["<a>"]})
    )
    assert special_tokens.read_roles(tmp_path) == {"bos": "<s>", "eos": "</s>"}


def test_folder_without_a_description_has_none(tmp_path):
    assert special_tokens.read_roles(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"tokenizer_config\.json is not JSON"),
        ("[]", r"tokenizer_config\.json holds a list, but must hold an object"),
        ('{"eos_token": 2}', r"tokenizer_config\.json: eos_token is 2, but must be a token's text"),
    ],
)
def test_description_that_cannot_be_understood_is_refused(tmp_path, content, message):
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        special_tokens.read_roles(tmp_path)


def test_description_is_read_back(tmp_path):
    roles = {"bos": "<|bos|>", "eos": "<|eos|>"}
    others = ["<|bos|>", "<|user|>", *special_tokens.reserved_names(2)]
    content = special_tokens.described(roles, others)
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    assert special_tokens.read_roles(tmp_path) == roles
    assert json.loads(content)["additional_special_tokens"] == ["<|user|>"]


def test_reserved_names_are_told_from_others():
    assert special_tokens.reserved_names(2, first=3) == ["<|reserved_3|>", "<|reserved_4|>"]
    assert special_tokens.is_reserved("<|reserved_3|>")
    assert not any(map(special_tokens.is_reserved, ("<|eos|>", "reserved_3", "<|user|>")))
