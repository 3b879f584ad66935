"""What stores of conversations and of answers share: the template, and what is found again."""

import pytest

from jaxtrain import chat_store, row_store
from jaxtrain.chat.builtin import BUILTIN
from jaxtrain.conversations.forms import BadRow
from jaxtrain.conversations.rows import Row
from jaxtrain.data.store import Store
from tests.chats import base_tokenizer, exchange, write_rows


@pytest.fixture
def source(tmp_path):
    base_tokenizer().save(tmp_path / "base")
    given = [write_rows(tmp_path / "chats.jsonl", [exchange("hi", "yo"), exchange("a", "b")])]

    def make(template="seed", **settings):
        return chat_store.Source(
            given, tmp_path / "base", template, chat_store.Settings(**settings)
        )

    return make


@pytest.mark.parametrize("template", BUILTIN)
def test_a_store_is_known_by_template_tokenizer_and_settings(source, template):
    tokenization = source(template, max_len=9).tokenization
    assert tokenization.settings["taught_from"] == base_tokenizer().sha256
    assert tokenization.settings["max_len"] == 9
    assert tokenization != source(template).tokenization
    assert source().chat_template.source == BUILTIN["seed"].source


def test_without_a_template_there_is_none(source):
    assert source(None).chat_template is None
    assert not source(None).is_taught


def test_a_malformed_row_has_no_record():
    assert row_store.record_of(Row("a:0", {"x": 1})) == {"x": 1}
    with pytest.raises(BadRow, match="bad JSON") as error:
        row_store.record_of(Row("a:0", None, "bad JSON"))
    assert error.value.reason == row_store.MALFORMED


def test_as_many_documents_are_shown_as_asked_for(source, capsys):
    row_store.show_documents(source(), 1, 1.0)
    assert capsys.readouterr().out.count("tokens trained") == 1
    row_store.show_documents(source(), 5, 1.0)
    assert capsys.readouterr().out.count("tokens trained") == 2


def test_the_ledger_travels_in_the_store_and_a_store_without_one_has_an_empty_one(
    source, tmp_path, tiny_stores
):
    record = row_store.encode(source(), 0.0, str(tmp_path / "store"))
    ledger = row_store.read_ledger(Store(str(tmp_path / "store")))
    assert ledger == record["ledger"]
    assert ledger["rows_in"] == 2
    assert row_store.read_ledger(Store(tiny_stores["a"])) == {}
