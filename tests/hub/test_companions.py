import json

import pytest

from jaxtrain.chat.source import teach, turn_end_ids
from jaxtrain.hub import companions
from jaxtrain.hub.directory import CONFIG
from jaxtrain.hub.save import GENERATION
from tests.chats import base_tokenizer
from tests.hub.tiny import FIELDS, add_tokenizer, write


@pytest.fixture
def model(tmp_path):
    return add_tokenizer(write(tmp_path / "model", fields={"initializer_range": 0.02}))


def test_an_import_keeps_what_training_does_not_touch(model, tmp_path):
    workdir = tmp_path / "run"
    companions.keep_origin(model, workdir)
    assert companions.origin(workdir, CONFIG) == {**FIELDS, "initializer_range": 0.02}
    generation = companions.origin(workdir, GENERATION)
    assert generation is not None
    assert generation["eos_token_id"] == [2, 3]
    expected = {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02}
    assert companions.token_fields(workdir) == expected


def test_a_start_from_nothing_leaves_nothing_of_an_import(model, tmp_path):
    workdir = tmp_path / "run"
    companions.keep_origin(model, workdir)
    companions.keep_origin(None, workdir)
    assert companions.origin(workdir, CONFIG) is None
    assert companions.origin(workdir, GENERATION) is None


def test_a_model_of_our_own_has_the_ids_of_its_tokenizer(model):
    assert companions.origin(model, CONFIG) is None
    assert companions.token_fields(model) == {"bos_token_id": 1, "eos_token_id": 2}


def test_files_go_through_as_they_are(model):
    files = companions.files_for_export(model)
    assert set(files) == {"tokenizer.json", "tokenizer_config.json"}
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == "{{x}}"
    for name, content in files.items():
        assert content == (model / name).read_bytes()


def test_a_directory_without_a_tokenizer_has_none(tmp_path):
    assert companions.read_tokenizer(tmp_path) is None
    assert companions.files_for_export(tmp_path) == {}
    assert companions.token_fields(tmp_path) == {}


def test_where_a_chat_was_trained_answers_end_with_its_turns(tmp_path):
    tokenizer, source = teach(base_tokenizer(), "seed")
    tokenizer.save(tmp_path)
    assert companions.generation_fields(tmp_path, is_trained=True) is None
    (tmp_path / "chat_template.jinja").write_text(source)
    ids = {role: tokenizer.special_ids[role] for role in ("bos", "eos", "pad")}
    expected = {f"{role}_token_id": number for role, number in ids.items()}
    expected["eos_token_id"] = [ids["eos"], tokenizer.control_id("<|end|>")]
    assert companions.generation_fields(tmp_path, is_trained=True) == expected
    assert companions.generation_fields(tmp_path, is_trained=False) is None


def test_ends_of_an_imported_model_stay_among_those_of_its_chat(model, tmp_path):
    tokenizer, source = teach(base_tokenizer(), "seed")
    tokenizer.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(source)
    companions.keep_origin(model, tmp_path)
    imported = companions.origin(tmp_path, GENERATION)
    assert imported is not None
    assert companions.generation_fields(tmp_path, is_trained=False) == imported
    ends = [*imported["eos_token_id"], *turn_end_ids(source, tokenizer)]
    found = companions.generation_fields(tmp_path, is_trained=True)
    assert found == {**imported, "eos_token_id": ends}
