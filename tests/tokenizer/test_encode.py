import numpy as np
import pytest

from jaxtrain.tokenizer import bpe, encode
from jaxtrain.tokenizer.encode import DOCUMENT_FORMS, Encoder
from jaxtrain.tokenizer.tokenizer import Tokenizer


@pytest.mark.parametrize("batch_chars", [1, 20, 10**6])
def test_ids_come_in_order_between_one_bos_and_one_eos_whatever_the_batching(
    any_kind, monkeypatch, batch_chars
):
    monkeypatch.setattr(encode, "_BATCH_CHARS", batch_chars)
    texts = ["red fox", "", "old oak " * 9, "<|eos|>", "日本"]
    encoded = list(Encoder(any_kind)(iter(texts)))
    for place, role in ((0, "bos"), (-1, "eos")):
        control = any_kind.special_ids[role]
        assert [ids[place] for ids in encoded] == [control] * len(texts)
        assert [np.count_nonzero(ids == control) for ids in encoded] == [1] * len(texts)
    assert [any_kind.decode(ids[1:-1]) for ids in encoded] == texts


@pytest.mark.parametrize("form", DOCUMENT_FORMS)
def test_document_has_just_the_tokens_of_its_form(tokenizer, form):
    (ids,) = Encoder(tokenizer, form)(["red"])
    names = {"bos": ["<|bos|>"], "text": ["red"], "eos": ["<|eos|>"]}
    assert tokenizer.decode(ids) == "".join(part for role in form for part in names[role])


def test_form_of_a_role_that_the_tokenizer_lacks_is_refused(tokenizer):
    without = Tokenizer(tokenizer.files["tokenizer.json"], {"eos": "<|eos|>"})
    with pytest.raises(ValueError, match=r"form 'bos text eos', but the tokenizer has no bos"):
        Encoder(without)
    (ids,) = Encoder(without, ("text", "eos"))([""])
    assert ids.tolist() == [without.special_ids["eos"]]


def test_form_that_puts_a_token_in_twice_is_refused(tokenizer):
    with pytest.raises(ValueError, match="cannot have the form 'bos bos text'"):
        Encoder(tokenizer, ("bos", "bos", "text"))


def test_texts_are_read_a_batch_at_a_time(tokenizer, monkeypatch):
    monkeypatch.setattr(encode, "_BATCH_CHARS", 10)
    num_read = 0

    def texts():
        nonlocal num_read
        for _ in range(1000):
            num_read += 1
            yield "12345"

    next(Encoder(tokenizer)(texts()))
    assert num_read == 2


def test_first_documents_and_a_share_of_the_others_are_verified(tokenizer):
    encoder = Encoder(tokenizer)
    num_texts = 16 + 128 * 40
    list(encoder(str(number) for number in range(num_texts)))
    # Of 5,120 one in 128 each: 40 ± 6.3; five standard deviations.
    assert 16 + 40 - 32 < encoder.num_verified < 16 + 40 + 32
    again = Encoder(tokenizer)
    list(again(str(number) for number in range(num_texts)))
    assert again.num_verified == encoder.num_verified


def test_ids_that_the_reference_does_not_give_are_an_error(tokenizer, monkeypatch):
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda _, texts: [np.zeros(1, np.uint32)])
    with pytest.raises(ValueError, match=r"give different ids for 'red'…; nothing was kept"):
        list(Encoder(tokenizer)(["red"]))


def test_documents_that_do_not_come_back_are_counted():
    folding = bpe.train(["fi 2"] * 3, 261, normalization="nfkc")
    encoder = Encoder(folding)
    list(encoder(["fi", "ﬁ", "２"]))
    assert (encoder.num_verified, encoder.num_changed) == (3, 2)
