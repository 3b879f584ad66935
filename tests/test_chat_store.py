"""Conversations into a store: what is in it, what became of every row, and when it is made anew."""

import json

import numpy as np
import pytest

from jaxtrain import chat_store, row_store
from jaxtrain.chat.source import TEMPLATE_FILE, template_source
from jaxtrain.data.store import Store
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.training import Training
from tests.chats import VOCAB_SIZE, base_tokenizer, exchange, expected, write_rows

ROWS = [exchange("hi", "yo"), {"id": "x", **exchange("a", "b")}, {"text": "plain"}]


@pytest.fixture
def base(tmp_path):
    base_tokenizer().save(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def encode(tmp_path, base, capsys):
    """Makes a store; returns it and what was printed."""

    def make(
        rows=ROWS, out="store", template="seed", tokenizer=base, max_bad_frac=0.01, **settings
    ):
        given = [rows if isinstance(rows, str) else write_rows(tmp_path / "chats.jsonl", rows)]
        chosen = chat_store.Settings(**settings)
        source = chat_store.Source(given, tokenizer, template, chosen)
        row_store.encode(source, max_bad_frac, str(tmp_path / out))
        return Store(str(tmp_path / out)), capsys.readouterr().out

    return make


def documents(store):
    """Ids and mask of every document."""
    pieces = [np.array([number], np.int64) for number in (0, store.num_tokens, 0)]
    ids, mask = np.empty(store.num_tokens, store.dtype), np.ones(store.num_tokens, np.uint8)
    store.read(*pieces, ids)
    store.read_weights(*pieces, mask)
    ends = store.document_ends[:-1]
    pairs = zip(np.split(ids, ends), np.split(mask, ends), strict=True)
    return [list(zip(i.tolist(), m.astype(bool).tolist(), strict=True)) for i, m in pairs]


def test_store_holds_ids_and_masks_and_leads_back_to_the_rows(encode):
    store, _ = encode()
    for found, row in zip(documents(store)[:2], ROWS, strict=False):
        assert found == expected("seed", row["messages"], (False, True))
    assert all(trained for _, trained in documents(store)[2][1:])
    places = [store.document_name(number) for number in range(3)]
    assert places[0] == ("chats chats.jsonl:0", "chats chats.jsonl:0")
    assert places[1][0] == "x"
    assert places[1][1].startswith("chats chats.jsonl:")


def test_weights_other_than_0_and_1_are_stored_for_each_token(encode):
    said = exchange("hi", "yo")["messages"]
    said[1]["weight"] = 2.5
    store, _ = encode([{"messages": said}, ROWS[1]])
    pieces = [np.array([number], np.int64) for number in (0, store.num_tokens, 0)]
    weights = np.ones(store.num_tokens, np.float32)
    store.read_weights(*pieces, weights)
    right = [
        weight * trained
        for row, weight in ((said, 2.5), (ROWS[1]["messages"], 1))
        for _, trained in expected("seed", row, (False, True))
    ]
    assert weights.tolist() == right


def test_thoughts_are_masked_or_their_rows_dropped_and_counted(encode):
    rows = [exchange("q", "<think>hm</think>a"), exchange("q", "b")]
    assert row_store.read_ledger(encode(rows)[0])["trained_tokens"] == 19 + 2
    masked, _ = encode(rows, out="masked", thinking="mask")
    assert row_store.read_ledger(masked)["trained_tokens"] == 2 + 2
    capped, out = encode(rows, out="capped", thinking=16)
    assert row_store.read_ledger(capped)["dropped"] == {"thoughts too long": 1}
    assert row_store.read_ledger(encode(rows, out="all", thinking=17)[0])["dropped"] == {}
    assert "dropped: 1 thoughts too long" in out


def test_tokenizer_and_template_travel_in_the_store_and_the_vocabulary_stays(encode, tmp_path):
    store, _ = encode()
    tokenizer = Tokenizer.load(tmp_path / "store")
    assert tokenizer.vocab_size == VOCAB_SIZE == store.tokenization.vocab_size
    assert tokenizer.sha256 == store.tokenization.tokenizer_sha256
    assert store.tokenization.settings["taught_from"] == base_tokenizer().sha256
    assert template_source(tmp_path / "store") == (tmp_path / "store" / TEMPLATE_FILE).read_text()


def test_a_tokenizer_that_has_the_tokens_is_not_another_afterwards(encode, tmp_path):
    encode()
    store, _ = encode(tokenizer=tmp_path / "store", out="again", template=None)
    assert store.tokenization.tokenizer_sha256 == Tokenizer.load(tmp_path / "store").sha256
    assert "taught_from" not in store.tokenization.settings


def test_every_row_is_counted_once_by_what_became_of_it(encode, tmp_path):
    path = write_rows(tmp_path / "mixed.jsonl", [*ROWS, exchange("q" * 90, "a"), {"odd": 1}])
    with open(path, "a") as file:
        file.write("{broken\n" + json.dumps({"messages": [{"role": "user", "content": "?"}]}))
    store, out = encode(path, max_bad_frac=0.5, max_len=60)
    ledger = row_store.read_ledger(store)
    assert ledger["rows_in"] == 7
    assert ledger["rows_out"] == store.num_documents == 3
    assert ledger["dropped"] == {
        "fits no form": 1,
        "malformed": 1,
        "no assistant message to train": 1,
        "too long": 1,
    }
    assert "7 rows in = 3 out + 4 dropped" in out
    assert "fits no form, first mixed mixed.jsonl:" in out
    assert f"{ledger['trained_tokens']} of {store.num_tokens} tokens trained" in out


def test_too_many_bad_rows_stop_it_and_nothing_is_left(encode, tmp_path):
    with pytest.raises(ValueError, match=r"1 of 4 rows are no conversations, .*--max_bad_frac=0.2"):
        encode([*ROWS, {"odd": 1}], max_bad_frac=0.2)
    assert not (tmp_path / "store").exists()
    encode([*ROWS, {"odd": 1}], max_bad_frac=0.25)


def test_nothing_left_to_train_on_is_an_error_that_says_why(encode, tmp_path):
    with pytest.raises(ValueError, match="nothing is left to train on, of 3 rows: 3 too long"):
        encode(max_len=2)
    with pytest.raises(ValueError, match="of 0 rows: there are no rows"):
        encode([])
    assert not (tmp_path / "store").exists()


def test_cut_rows_are_counted(encode):
    _, out = encode([exchange("a", "b" * 40)], max_len=20, too_long="right")
    assert "too long, cut by tokens: 1" in out


def test_the_same_content_is_found_wherever_it_lies(encode, tmp_path):
    first, _ = encode()
    assert "already holds these documents" in encode()[1]
    moved = write_rows(tmp_path / "elsewhere" / "renamed.jsonl", ROWS)
    second, _ = encode(moved, out="other")
    assert first.metadata.fingerprint == second.metadata.fingerprint
    assert "already holds" in encode(moved)[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_len": 50}, "max_len=None, not 50"),
        ({"train": "last"}, "train='all', not 'last'"),
        ({"thinking": "mask"}, "thinking='train', not 'mask'"),
        ({"template": "chatml"}, "another tokenizer"),
        ({"rows": [*ROWS[:2], {"text": "plaim"}]}, "the text has changed"),
    ],
)
def test_a_store_of_other_content_is_neither_taken_nor_replaced(encode, change, reason):
    store, _ = encode()
    with pytest.raises(ValueError, match=f"exists and .*{reason}"):
        encode(**change)
    assert Store(store.path).metadata.fingerprint == store.metadata.fingerprint


def test_another_tokenizer_or_template_under_the_same_path_is_noticed(encode, base, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}<|eos|>{{ m.content }}<|bos|>{% endfor %}")
    encode([exchange("a", "b")], template=str(template))
    template.write_text("{% for m in messages %}<|bos|>{{ m.content }}<|eos|>{% endfor %}")
    with pytest.raises(ValueError, match="exists and it has chat_template_sha256"):
        encode([exchange("a", "b")], template=str(template))
    base_tokenizer().with_special_tokens(["<|new|>"]).save(base)
    with pytest.raises(ValueError, match="exists and it was made with another tokenizer"):
        encode([exchange("a", "b")], template=str(template))


def test_a_vocabulary_without_room_is_refused_with_what_to_do(encode, tmp_path):
    Training("bpe", 261, num_reserved=1).train(["a"]).save(tmp_path / "full")
    with pytest.raises(ValueError, match=r"tokens <\|im_end\|>, <\|im_start\|>, and") as error:
        encode(tokenizer=tmp_path / "full", template="chatml")
    assert "has 1 reserved ids for 2" in str(error.value)
    assert "--add_token='<|im_end|>' --add_token='<|im_start|>'" in str(error.value)
    assert "--num_reserved=2" in str(error.value)
    with pytest.raises(ValueError, match="must be a file, or one of chatml, llama3, seed"):
        encode(template="chatgpt")


def test_rewritten_history_is_said(encode, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'assistant' %}<|bos|>{% generation %}"
        "{{ m.content if loop.last else '' }}<|eos|>{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    talk = {"messages": exchange("a", "b")["messages"] * 2}
    assert "warning: the template writes earlier turns" in encode([talk], template=str(template))[1]
    assert "warning" not in encode([exchange("a", "b")], out="one", template=str(template))[1]


def test_rows_can_be_looked_at_before_anything_is_made(tmp_path, base, capsys):
    given = [write_rows(tmp_path / "chats.jsonl", [{"odd": 1}, *ROWS])]
    source = chat_store.Source(given, base, "seed", chat_store.Settings())
    row_store.show_documents(source, 1, 1.0)
    out = capsys.readouterr().out
    assert "<|bos|><|user|>hi<|end|><|assistant|>⟦yo<|end|>⟧" in out
    assert "dropped: chats chats.jsonl:0: has the keys ['odd']" in out
    assert "plain" not in out
