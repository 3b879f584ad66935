import json

import pytest

from jaxtrain.hub import companions
from jaxtrain.hub.directory import CONFIG
from jaxtrain.hub.save import GENERATION
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
